"""Registries: what an author says about entries that may be the same, and which of them never are.

A registry names one kind of entry, how entries are told apart by code, and the proposer that is asked about the rest.
It keeps no entries: they live in the ledger. Typed rules have the last word over whatever a model proposes, and a rule
that breaks forbids.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, combinations, product
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError

from remand_policy import Disposition, Fault, Policy

from .attempt import to_json_as
from .authoring import (
    Producer,
    Validator,
    _describe,
    _first_line,
    _function,
    _functions,
    _name,
    _text,
    _whole,
)
from .blocks import KEPT_APART, BlockProducer
from .calls import place_of
from .context import Context
from .errors import BadEntry, PipelineError, StructuralFailure
from .keys import is_key
from .normal import normal

if TYPE_CHECKING:
    from .pipeline import Pipeline

log = logging.getLogger("remand")

E = TypeVar("E", bound=BaseModel)

MAX_NAME: Final = 80
MAX_TEXT: Final = 10_000
"""The longest text that is compared, in characters: a block of them has to fit into one prompt."""
MAX_EXACT: Final = 200
"""Longer exact keys are kept as their hash."""
_RULES_VERSION: Final = "1"
"""Raised with every change of normalisation or of the checks that could change a group."""
_RESERVED: Final = frozenset({*Fault, KEPT_APART})


@dataclass(frozen=True, slots=True)
class Forbidden:
    """The rule that forbids joining clusters, what it says, and the places of the clusters that it is about."""

    rule: str
    words: str = field(repr=False)
    clusters: tuple[int, ...] = ()


class Registry(Generic[E]):
    """Entries of one kind, of which some are the same.

    `entry` is a pydantic model. `key(entry)` gives the id that stays the same when an entry is sent again, of 1 to 200
    characters; `text(entry)` is what is compared. Two entries for which one of the `exact` functions gives the same
    text, as `normal` has it, are the same without asking a model. A function of `cannot_link`, called with two entries
    in both orders, forbids that they become one where it is true, `compatible(entries)` where it is false; a rule that
    raises forbids too. `merge(entries)` makes the record of a cluster out of its members, the canonical one first,
    whose record it is otherwise. `embed(texts)` gives a vector for each text: one more source of candidates.

    The `proposer` is asked about blocks of at most `block_size` records, with `retries` further attempts; `validators`
    judge its `Proposal`. Each entry is compared with its `neighbours` nearest ones; `max_calls` bounds the model calls
    of one reconciliation. `policy` replaces single dispositions, or all of them: by default a block that fails merges
    nothing and fails nothing. Functions are known by their names and first lines of documentation, so raise the
    `version` when you change one. Raises `PipelineError` naming the field that is wrong.
    """

    def __init__(
        self,
        name: str,
        entry: type[E],
        *,
        version: str,
        key: Callable[[E], str],
        text: Callable[[E], str],
        exact: Sequence[Callable[[E], str | None]] = (),
        cannot_link: Sequence[Callable[[E, E], bool]] = (),
        compatible: Callable[[Sequence[E]], bool] | None = None,
        merge: Callable[[Sequence[E]], E] | None = None,
        proposer: Producer[Any],
        validators: Sequence[Validator] = (),
        retries: int = 1,
        block_size: int = 24,
        accept_incomplete: bool = False,
        policy: Policy | Mapping[str, Disposition | str] | None = None,
        neighbours: int = 10,
        max_calls: int | None = None,
        embed: Callable[[Sequence[str]], Sequence[Sequence[float]]] | None = None,
    ) -> None:
        self.name = _name("registry", name)
        where = self._where = f"registry {name!r}"
        if len(name) > MAX_NAME:
            raise PipelineError("registry", f"name must be at most {MAX_NAME} characters")
        if not isinstance(entry, type) or not issubclass(entry, BaseModel):
            raise PipelineError(where, "entry must be a pydantic model class")
        self.entry = entry
        self.version = _text(where, "version", version)
        self.key = _function(where, "key", key)
        self.text = _function(where, "text", text)
        self.exact = _functions(where, "exact", exact)
        self.cannot_link = _functions(where, "cannot_link", cannot_link)
        self.compatible = None if compatible is None else _function(where, "compatible", compatible)
        self.merge = None if merge is None else _function(where, "merge", merge)
        self.embed = None if embed is None else _function(where, "embed", embed)
        rules: list[Callable[..., bool]] = [*self.cannot_link]
        if self.compatible is not None:
            rules.append(self.compatible)
        for rule in _functions(where, "cannot_link and compatible", rules):
            if rule.__name__ in _RESERVED:
                raise PipelineError(where, f"no rule may be called {rule.__name__!r}: a fault is called so")
        if not isinstance(proposer, Producer):
            hint = "; decorate it with @producer(version=...)" if callable(proposer) else ""
            raise PipelineError(where, f"proposer must be a Producer, not {type(proposer).__name__}{hint}")
        self.proposer = proposer
        self.block_size = _whole(where, "block_size", block_size, 2, 100)
        if not isinstance(accept_incomplete, bool):
            raise PipelineError(where, "accept_incomplete must be True or False")
        self.accept_incomplete = accept_incomplete
        self.neighbours = _whole(where, "neighbours", neighbours, 1, 1_000)
        self.max_calls = None if max_calls is None else _whole(where, "max_calls", max_calls, 1, 1_000_000)
        self.pipeline = self._pipeline(validators, retries, policy)

    def _pipeline(
        self,
        validators: Sequence[Validator],
        retries: int,
        policy: Policy | Mapping[str, Disposition | str] | None,
    ) -> Pipeline:
        """Blocks are its inputs, proposals its values."""
        # A pipeline knows the registries that it feeds.
        from .pipeline import Pipeline, Stage

        try:
            stage = Stage("propose", BlockProducer(self), validators, retries=retries)
            return Pipeline(
                f"registry:{self.name}", version=self.version, stages=[stage], policy=_policy(policy)
            )
        except PipelineError as error:
            raise PipelineError(self._where, error.problem) from None

    # ------------------------------------------------------------------------------------------------ entries

    @cached_property
    def adapter(self) -> TypeAdapter[E]:
        """Turns entries into JSON and back."""
        return TypeAdapter(self.entry)

    def parse(self, data: bytes | str | Mapping[str, Any]) -> E:
        """The entry that `data` holds, as JSON text or as a mapping. Raises `BadEntry`."""
        try:
            if isinstance(data, Mapping):
                return self.adapter.validate_python(data)
            return self.adapter.validate_json(data)
        except ValidationError as error:
            unreadable = error.errors(include_input=False, include_context=False)[0]["type"] == "json_invalid"
            code = "not_json" if unreadable else "schema_mismatch"
        except (Exception, SystemExit) as error:
            self._warn("entry", self.entry, error)
            code = "entry_raised"
        raise BadEntry(code)

    def dump(self, entry: E) -> str:
        """`entry` as JSON text that `parse` takes. Raises `BadEntry`."""
        try:
            return to_json_as(self.adapter, entry).decode()
        except StructuralFailure as failure:
            code = failure.code
        raise BadEntry(code)

    def entry_id(self, entry: E) -> str:
        """The stable id of `entry`. Raises `BadEntry`."""
        found = self._ask("key", self.key, entry)
        if not isinstance(found, str) or not is_key(found):
            raise BadEntry("key")
        return found

    def compared(self, entry: E) -> str:
        """The text of `entry` that is compared, of 1 to `MAX_TEXT` characters. Raises `BadEntry`."""
        found = self._ask("text", self.text, entry)
        if not isinstance(found, str) or not found.strip() or len(found) > MAX_TEXT or not _is_unicode(found):
            raise BadEntry("text")
        return found

    def exact_keys(self, entry: E) -> tuple[str, ...]:
        """The normalised values of the exact functions, each behind its function's name. Raises `BadEntry`."""
        keys: list[str] = []
        for function in self.exact:
            found = self._ask("exact", function, entry)
            if found is not None and not isinstance(found, str):
                raise BadEntry("exact")
            value = normal(found or "")
            if len(value) > MAX_EXACT:
                value = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
            if value:
                keys.append(f"{function.__name__}:{value}")
        return tuple(keys)

    def canonical(self, members: Sequence[E]) -> E:
        """The record of a cluster, made of its members, the canonical one first. Raises `BadEntry`."""
        if self.merge is None:
            return members[0]
        return self._entry("merge", self._ask("merge", self.merge, tuple(members)))

    def forbidden(self, clusters: Sequence[Sequence[E]]) -> Forbidden | None:
        """The first rule that forbids making one cluster of `clusters`, or `None`.

        Every pair of members of two different clusters goes through every `cannot_link` in both orders, then all
        members together through `compatible`.
        """
        if len(clusters) < 2:
            return None
        for (one, first), (other, second) in combinations(enumerate(clusters), 2):
            for rule in self.cannot_link:
                if any(self._says(rule, *pair) is not False for pair in _both_ways(first, second)):
                    return Forbidden(rule.__name__, _words(rule), (one, other))
        if self.compatible is not None:
            members = tuple(chain.from_iterable(clusters))
            if self._says(self.compatible, members) is not True:
                every = tuple(range(len(clusters)))
                return Forbidden(self.compatible.__name__, _words(self.compatible), every)
        return None

    def _says(self, rule: Callable[..., bool], *entries: object) -> bool | None:
        """What a rule says of entries, or `None` where it raised."""
        try:
            return bool(rule(*entries))
        except (Exception, SystemExit) as error:
            self._warn(rule.__name__, rule, error)
            return None

    def _ask(self, field: str, function: Callable[..., object], *args: object) -> object:
        """What a function of the author's gives. Raises `BadEntry` where it raised."""
        try:
            return function(*args)
        except (Exception, SystemExit) as error:
            self._warn(field, function, error)
        raise BadEntry(f"{field}_raised")

    def _entry(self, field: str, found: object) -> E:
        """`found` if it is an entry. Raises `BadEntry`."""
        if not isinstance(found, self.entry):
            raise BadEntry(field)
        return found

    def _warn(self, what: str, code: Callable[..., object], error: BaseException) -> None:
        place = place_of(error, code)
        log.warning("registry %s: %s raised %s at %s", self.name, what, place.type, place.at)

    # ------------------------------------------------------------------------------------------- fingerprints

    def describe(self) -> Mapping[str, Any]:
        """What the fingerprint covers besides the settings of its stage. Raises `PipelineError`."""
        try:
            schema = self.adapter.json_schema()
        except PydanticUserError as error:
            raise PipelineError(self._where, f"entry has no JSON schema ({type(error).__name__})") from None
        single = {
            "key": self.key,
            "text": self.text,
            "compatible": self.compatible,
            "merge": self.merge,
            "embed": self.embed,
        }
        return {
            "name": self.name,
            "rules": _RULES_VERSION,
            "entry": schema,
            **{field: _describe(function) for field, function in single.items() if function is not None},
            "exact": [_describe(function) for function in self.exact],
            "cannot_link": [_describe(function) for function in self.cannot_link],
            "proposer": self.proposer.describe(),
            "block_size": self.block_size,
            "accept_incomplete": self.accept_incomplete,
            "neighbours": self.neighbours,
            "max_calls": self.max_calls,
        }

    @property
    def fingerprint(self) -> str:
        """The fingerprint of all that decides which entries become one, its pipeline's. Raises `PipelineError`."""
        return self.pipeline.fingerprint

    def __repr__(self) -> str:
        return f"<registry {self.name!r} version {self.version!r}: {self.entry.__name__}, {self.proposer!r}>"


class Feed(Generic[E]):
    """How accepted values of a pipeline become entries of a registry: `make(value, context)`, or `None` for none.

    `make` may give a mapping that fits the entry too. `version` stands for its code in the pipeline's fingerprint.
    """

    def __init__(
        self,
        registry: Registry[E],
        make: Callable[[Any, Context], E | Mapping[str, Any] | None],
        *,
        version: str,
    ) -> None:
        if not isinstance(registry, Registry):
            raise PipelineError("feed", f"registry must be a Registry, not {type(registry).__name__}")
        where = f"feed of registry {registry.name!r}"
        if not callable(make):
            raise PipelineError(where, f"make must be a function, not {type(make).__name__}")
        if inspect.iscoroutinefunction(make):
            raise PipelineError(where, "make must be a plain function, not an async one")
        self.registry = registry
        self.make = make
        self.version = _text(where, "version", version)

    def entry(self, value: object, context: Context) -> E | None:
        """The entry that `value` becomes, if it becomes one. Raises `BadEntry`."""
        made = self.registry._ask("make", self.make, value, context)
        if made is None:
            return None
        return self.registry.parse(made) if isinstance(made, Mapping) else self.registry._entry("make", made)

    def describe(self) -> Mapping[str, Any]:
        """What the pipeline's fingerprint covers."""
        return {
            "registry": self.registry.fingerprint,
            "make": getattr(self.make, "__qualname__", type(self.make).__qualname__),
            "version": self.version,
        }

    def __repr__(self) -> str:
        return f"<feed of registry {self.registry.name!r} version {self.version!r}>"


# ---------------------------------------------------------------------------------------------------- settings


def _policy(given: Policy | Mapping[str, Disposition | str] | None) -> Policy:
    if isinstance(given, Policy):
        return given
    if given is not None and not isinstance(given, Mapping):
        raise PipelineError("policy", f"policy must be a Policy or a mapping, not {type(given).__name__}")
    goes_on = Disposition.WARN_CONTINUE
    try:
        return Policy(
            structural_failure=goes_on, semantic_rejection=goes_on, operational_failure=goes_on
        ).override(given or {})
    except ValueError as error:
        raise PipelineError("policy", f"policy: {error}") from None


def _words(rule: Callable[..., Any]) -> str:
    """What a rule says of itself: the first line of its documentation, or its name."""
    return _first_line(rule) or f"They fail the rule {rule.__name__.replace('_', ' ')!r}."


def _both_ways(first: Sequence[E], second: Sequence[E]) -> Iterator[tuple[E, E]]:
    for one, other in product(first, second):
        yield one, other
        yield other, one


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
