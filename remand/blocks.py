"""One block of a registry's records as an item: the model proposes groups, code decides which of them may be.

The input holds the records in prompt order under local ids, what else their clusters contain, and the pairs that must
stay apart. The proposer is shown ids and texts alone. Whatever the texts say, groups are checked on ids by
`remand_policy.check_groups` and on records by the registry's typed rules. Safe groups survive as the fallback; unsafe
ones stay apart and become guidance.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from remand_policy import LOCAL_ID, Defect, Grouping, check_groups, render_defects

from .attempt import code_of
from .authoring import Producer
from .context import Context, Correction, ModelResponse, Produced, RetryRequest
from .errors import BadEntry, OperationalFailure, StructuralFailure

if TYPE_CHECKING:
    from .registry import Registry

KEPT_APART: Final = "kept_apart"
_KEPT_APART_WORDS: Final = "A person settled that these records are different."


class Groups(BaseModel):
    """What a proposer answers, in local ids: `groups` are the same, `unsure` may be, `apart` match no other record.

    Without `apart` every record that is not named is apart; with it each record has to be named once.
    """

    model_config = ConfigDict(hide_input_in_errors=True)
    groups: list[list[str]] = Field(repr=False)
    apart: list[str] | None = Field(default=None, repr=False)
    unsure: list[list[str]] = Field(default=[], repr=False)


class Refused(BaseModel):
    """A group that was not let through: the fault or rule, and its local ids; or the ids that went unnamed."""

    rule: str
    ids: list[str]


class Proposal(BaseModel):
    """The groups of one block that passed every check, in local ids. Records in none of them are apart."""

    groups: list[list[str]] = []
    unsure: list[list[str]] = []
    refused: list[Refused] = []


class BlockRecord(BaseModel):
    """A record of the block: its local id, its entry's id and version, the cluster that it stands for, its data."""

    model_config = ConfigDict(hide_input_in_errors=True)
    id: str
    entry: str
    version: int
    cluster: str
    record: dict[str, Any] = Field(repr=False)


class Member(BaseModel):
    """Another member of a cluster that a record of the block stands for."""

    model_config = ConfigDict(hide_input_in_errors=True)
    cluster: str
    record: dict[str, Any] = Field(repr=False)


class Block(BaseModel):
    """The input of one block: records in prompt order, the rest of their clusters, pairs that must stay apart."""

    model_config = ConfigDict(hide_input_in_errors=True)
    registry: str
    seed: int
    records: list[BlockRecord]
    around: list[Member] = []
    apart: list[tuple[str, str]] = []

    @model_validator(mode="after")
    def _ids_are_local_and_their_own(self) -> Self:
        ids = {record.id for record in self.records}
        well_formed = all(LOCAL_ID.fullmatch(name) for name in ids)
        if not well_formed or len(ids) != len(self.records) or not ids.issuperset(chain(*self.apart)):
            raise ValueError("the ids of a block are r1, r2 and so on, each once; apart names no others")
        return self


_GROUPS: Final = TypeAdapter(Groups)


class BlockProducer(Producer[Proposal]):
    """Asks the registry's proposer about one block, and lets through what the rules allow.

    A proposal without a defect is the candidate. One with defects asks for another attempt: with guidance where the
    proposer takes corrections, and with what is safe as the fallback. A reply that cannot be read asks again without
    guidance; its fallback merges nothing. What else the proposer raises passes through.
    """

    def __init__(self, registry: Registry[Any]) -> None:
        self.registry = registry
        self.proposer = registry.proposer
        super().__init__(
            self.proposer.name,
            version=registry.version,
            output=Proposal,
            correction=self.proposer.correction,
            repairs=self.proposer.repairs,
            timeout=self.proposer.timeout,
        )
        self.keeps_deadline: bool = getattr(self.proposer, "keeps_deadline", False)
        self.function: Any = getattr(self.proposer, "function", self.proposer)
        """The author's code, which errors are traced to."""

    def describe(self) -> Mapping[str, Any]:
        """What the fingerprint covers: all of the registry."""
        return {**super().describe(), "registry": self.registry.describe()}

    def __call__(self, context: Context, correction: Correction | None) -> Any:
        """One attempt at one block. Raises `OperationalFailure` for an input that is no block of this registry."""
        block = _OpenBlock.of(self.registry, context.input)
        try:
            given = self.proposer(replace(context, input=block.shown()), correction)
            return self._later(block, given) if inspect.isawaitable(given) else self._checked(block, given)
        except StructuralFailure as failure:
            return _malformed(failure)

    async def _later(self, block: _OpenBlock, given: Awaitable[Any]) -> Any:
        try:
            return self._checked(block, await given)
        except StructuralFailure as failure:
            return _malformed(failure)

    def _checked(self, block: _OpenBlock, given: Any) -> Any:
        """What the proposer gave, with its groups checked. What is neither of the two kinds is left as it is."""
        if isinstance(given, Produced):
            proposal, defects = block.check(_groups(given.value, given))
            if not defects:
                return Produced(proposal, given.response, given.generations)
            rules = _rules(defects)
            return RetryRequest(
                "unsafe_groups",
                f"{len(defects)} defects in the proposed groups: {', '.join(rules)}",
                proposal,
                guidance=self._guidance(defects, given.response),
                response=given.response,
                rank=_grouped(proposal),
                diagnostics=rules,
                generations=given.generations,
            )
        if isinstance(given, RetryRequest) and given.fallback is not None:
            proposal, defects = block.check(_groups(given.fallback, given))
            own = self._guidance(defects, given.response)
            return replace(
                given,
                fallback=proposal,
                guidance=own if given.guidance is None else given.guidance,
                rank=_grouped(proposal),
                diagnostics=(*given.diagnostics, *_rules(defects)),
            )
        return given

    def _guidance(self, defects: Sequence[Defect], response: ModelResponse | None) -> str | None:
        can_be_said = self.correction and isinstance(response, ModelResponse) and response.usable
        return render_defects(defects) if defects and can_be_said else None


class _OpenBlock:
    """A block with its records as entries of the registry."""

    def __init__(self, registry: Registry[Any], block: Block) -> None:
        self._registry = registry
        self._texts: dict[str, str] = {}
        self._cluster: dict[str, str] = {}
        self._members: dict[str, list[Any]] = {}
        for record in block.records:
            entry = registry.parse(record.record)
            self._texts[record.id] = registry.compared(entry)
            self._cluster[record.id] = record.cluster
            self._members.setdefault(record.cluster, []).append(entry)
        for member in block.around:
            self._members.setdefault(member.cluster, []).append(registry.parse(member.record))
        self._apart = {frozenset((self._cluster[one], self._cluster[other])) for one, other in block.apart}

    @classmethod
    def of(cls, registry: Registry[Any], data: object) -> _OpenBlock:
        """The block that an item's input describes."""
        try:
            block = Block.model_validate(data)
            if block.registry != registry.name:
                raise OperationalFailure("block_registry", generations=0)
            return cls(registry, block)
        except ValidationError:
            raise OperationalFailure("block_input", generations=0) from None
        except BadEntry as error:
            raise OperationalFailure(f"block_{error.code}", generations=0) from None

    def shown(self) -> dict[str, Any]:
        """What the proposer is shown: ids and texts."""
        return {"records": [{"id": name, "text": text} for name, text in self._texts.items()]}

    def check(self, proposed: Groups) -> tuple[Proposal, tuple[Defect, ...]]:
        """The part of a proposal that may be applied, and what is wrong with the rest, group by group."""
        checked = check_groups(
            Grouping(
                tuple(map(tuple, proposed.groups)),
                None if proposed.apart is None else tuple(proposed.apart),
                tuple(map(tuple, proposed.unsure)),
            ),
            list(self._texts),
            largest=min(len(self._texts), self._registry.block_size),
        )
        number = {frozenset(group): place for place, group in enumerate(proposed.groups, start=1)}
        defects, settled = list(checked.defects), list[Refused]()
        safe, unsure = list[list[str]](), list[list[str]]()
        for group in checked.safe:
            defect = self._forbidden(group, number[frozenset(group)])
            if defect is None:
                safe.append(list(group))
            else:
                defects.append(defect)
        for group in checked.unsure:
            defect = self._forbidden(group)
            if defect is None:
                unsure.append(list(group))
            else:  # no defect of a proposal that did not claim it, and nothing for a person to settle
                settled.append(Refused(rule=defect.rule, ids=list(group)))
        defects.sort(key=lambda defect: (defect.unsure, defect.group or 0))
        refused = [*self._refused(proposed, defects), *settled]
        return Proposal(groups=safe, unsure=unsure, refused=refused), tuple(defects)

    def _forbidden(self, group: Sequence[str], number: int | None = None) -> Defect | None:
        """Why the clusters that the records of `group` stand for must not become one."""
        clusters = list(dict.fromkeys(self._cluster[name] for name in group))
        for one, other in combinations(clusters, 2):
            if frozenset((one, other)) in self._apart:
                return Defect(KEPT_APART, number, self._within(group, (one, other)), _KEPT_APART_WORDS)
        found = self._registry.forbidden([self._members[cluster] for cluster in clusters])
        if found is None:
            return None
        return Defect(
            found.rule,
            number,
            self._within(group, [clusters[place] for place in found.clusters]),
            found.words,
        )

    def _within(self, group: Sequence[str], clusters: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in group if self._cluster[name] in clusters)

    def _refused(self, proposed: Groups, defects: Sequence[Defect]) -> list[Refused]:
        """What was refused, as codes and local ids, without ids that the model made up."""
        refused: dict[tuple[str, ...], str] = {}
        for defect in defects:
            groups = proposed.unsure if defect.unsure else proposed.groups
            named = defect.ids if defect.group is None else groups[defect.group - 1]
            refused.setdefault(tuple(name for name in self._texts if name in named), defect.rule)
        return [Refused(rule=rule, ids=list(ids)) for ids, rule in refused.items() if ids]


def _groups(value: object, given: Produced | RetryRequest) -> Groups:
    """`value` as groups; a plain list of lists of ids is taken too. Raises `StructuralFailure`."""
    try:
        return _GROUPS.validate_python(
            {"groups": value} if isinstance(value, list | tuple) else value, from_attributes=True
        )
    except ValidationError:
        usage = given.response.usage if isinstance(given.response, ModelResponse) else None
        raise StructuralFailure("groups", generations=given.generations, usage=usage) from None


def _malformed(failure: StructuralFailure) -> RetryRequest:
    """A fresh attempt, for there is no reply to correct; the fallback merges nothing."""
    return RetryRequest(
        "malformed",
        f"no groups could be read: {code_of(failure.code)}",
        Proposal(),
        response=None if failure.usage is None else ModelResponse("", usage=failure.usage),
        diagnostics=("malformed",),
        generations=failure.generations,
    )


def _rules(defects: Sequence[Defect]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(defect.rule) for defect in defects))


def _grouped(proposal: Proposal) -> int:
    """How many records are in its groups: of several safe partial proposals the one that merges most is kept."""
    return sum(map(len, proposal.groups))
