"""Pipelines: what an author puts together, checked as a whole when it is made.

Everything wrong with a pipeline is found here and said in one clear sentence that names the place and the field.
Nothing is called yet.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any

from remand_policy import (
    SINGLE_RESPONSE_V1,
    Backoff,
    Bounds,
    Disposition,
    Policy,
    Rules,
    WorstCase,
    digest,
    stage_fingerprint,
    worst_case,
)

from .authoring import Producer, Validator, _budget, _name, _text
from .calls import place_of
from .context import Context
from .errors import PipelineError
from .registry import Feed, Registry

DAY = timedelta(hours=24)


class Stage:
    """One producer binding: a producer, its ordered validators, its outer budget, its policy overrides.

    `retries` is the outer budget, shared by operational, structural, validation and module retries. `deadline` counts
    from an item's admission to this stage, throttling included. `policy` maps single reasons to dispositions; the
    others keep the pipeline's value. `backoff` is the first wait in seconds after an operational failure; it doubles,
    up to a minute. Raises `PipelineError`.
    """

    def __init__(
        self,
        name: str,
        producer: Producer[Any],
        validators: Sequence[Validator] = (),
        *,
        retries: int = 2,
        blind_retries: bool = False,
        deadline: timedelta = DAY,
        policy: Mapping[str, Disposition | str] | None = None,
        backoff: float = 1.0,
    ) -> None:
        self.name = _name("stage", name)
        where = f"stage {name!r}"
        if not isinstance(producer, Producer):
            hint = "; decorate it with @producer(version=...)" if callable(producer) else ""
            raise PipelineError(where, f"producer must be a Producer, not {type(producer).__name__}{hint}")
        if isinstance(validators, str | bytes) or not isinstance(validators, Sequence):
            raise PipelineError(where, f"validators must be a list, not {type(validators).__name__}")
        for place, validator in enumerate(validators):
            if isinstance(validator, Validator):
                continue
            if callable(validator):
                named = getattr(validator, "__name__", type(validator).__name__)
                problem = (
                    f"validators[{place}]: {named!r} has no version; decorate it with @validator(version=...)"
                )
            else:
                problem = f"validators[{place}]: {type(validator).__name__} is not callable"
            raise PipelineError(where, problem)
        names = [validator.name for validator in validators]
        for repeated in names:
            if names.count(repeated) > 1:
                raise PipelineError(where, f"two validators are called {repeated!r}")
        self.producer = producer
        self.validators = tuple(validators)
        self.retries = _budget(where, "retries", retries)
        if not isinstance(blind_retries, bool):
            raise PipelineError(where, "blind_retries must be True or False")
        self.blind_retries = blind_retries
        if not isinstance(deadline, timedelta) or deadline <= timedelta(0):
            raise PipelineError(where, "deadline must be a positive timedelta")
        self.deadline = deadline
        if policy is not None and not isinstance(policy, Mapping):
            raise PipelineError(where, "policy must be a mapping of reasons to dispositions")
        self.overrides = dict(policy or {})
        self.effective_policy(Policy())
        if isinstance(backoff, bool) or not isinstance(backoff, int | float) or not 0 <= backoff <= 60:
            raise PipelineError(where, "backoff must be a number of seconds from 0 to 60")
        self.backoff = Backoff(base=float(backoff))

    def effective_policy(self, policy: Policy) -> Policy:
        """The pipeline's policy with this stage's overrides."""
        try:
            return policy.override(self.overrides)
        except ValueError as error:
            raise PipelineError(f"stage {self.name!r}", f"policy: {error}") from None

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Indices of neighbouring validators that share a queue: each group runs in one hop."""
        groups: list[list[int]] = []
        for index, validator in enumerate(self.validators):
            if groups and self.validators[groups[-1][-1]].queue == validator.queue:
                groups[-1].append(index)
            else:
                groups.append([index])
        return tuple(tuple(group) for group in groups)

    def describe(self, policy: Policy) -> dict[str, Any]:
        """What the fingerprint covers of this stage."""
        effective = self.effective_policy(policy).describe()
        effective.pop("retain_quarantined")
        return {
            "name": self.name,
            "producer": self.producer.describe(),
            "validators": [validator.describe() for validator in self.validators],
            "retries": self.retries,
            "blind_retries": self.blind_retries,
            "policy": effective,
        }

    def __repr__(self) -> str:
        return f"<stage {self.name!r}: {self.producer!r}, {len(self.validators)} validators, retries={self.retries}>"


class Pipeline:
    """A named, versioned list of stages with a policy and the registries that its accepted values feed.

    A `Registry` among `registries` takes the values of the last stage as they are, a `Feed` what it makes of them.
    Raises `PipelineError` for duplicate names, negative budgets, missing versions, unknown policy fields.
    """

    def __init__(
        self,
        name: str,
        *,
        version: str,
        stages: Sequence[Stage],
        policy: Policy | None = None,
        bounds: Bounds | None = None,
        registries: Sequence[Registry[Any] | Feed[Any]] = (),
    ) -> None:
        self.name = _name("pipeline", name)
        where = f"pipeline {name!r}"
        self.version = _text(where, "version", version)
        if not isinstance(stages, Sequence) or isinstance(stages, str | bytes) or not stages:
            raise PipelineError(where, "stages must be a list with at least one Stage")
        for place, stage in enumerate(stages):
            if not isinstance(stage, Stage):
                raise PipelineError(where, f"stages[{place}] must be a Stage, not {type(stage).__name__}")
        names = [stage.name for stage in stages]
        for repeated in names:
            if names.count(repeated) > 1:
                raise PipelineError(where, f"two stages are called {repeated!r}")
        if policy is not None and not isinstance(policy, Policy):
            raise PipelineError(where, f"policy must be a Policy, not {type(policy).__name__}")
        if bounds is not None and not isinstance(bounds, Bounds):
            raise PipelineError(where, f"bounds must be Bounds, not {type(bounds).__name__}")
        self.stages = tuple(stages)
        self.policy = policy or Policy()
        self.bounds = bounds or Bounds()
        self.registries = _feeds(where, registries, self.stages[-1].producer.output)

    @cached_property
    def stage_fingerprints(self) -> tuple[str, ...]:
        """One fingerprint a stage, each covering the stages before it. Raises `PipelineError` if one has none."""
        made: list[str] = []
        for stage in self.stages:
            try:
                described = stage.describe(self.policy)
                made.append(stage_fingerprint(described, bounds=self.bounds, before=made))
            except (TypeError, ValueError) as error:
                where = f"pipeline {self.name!r}, stage {stage.name!r}"
                raise PipelineError(where, f"cannot be fingerprinted: {error}") from None
        return tuple(made)

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the whole: what a run is made with, and what a worker must reproduce to touch it."""
        described: dict[str, object] = {
            "name": self.name,
            "version": self.version,
            "stages": self.stage_fingerprints,
        }
        if self.registries:
            described["registries"] = [feed.describe() for feed in self.registries]
        return digest(described)

    @cached_property
    def _policies(self) -> tuple[Policy, ...]:
        return tuple(stage.effective_policy(self.policy) for stage in self.stages)

    def rules(
        self, stage: int, *, max_recoveries: int = 3, max_reopens: int = 8, max_throttles: int = 10_000
    ) -> Rules:
        """What `decide` needs to know of the stage at index `stage`."""
        bound = self.stages[stage]
        return Rules(
            retries=bound.retries,
            execution_retries=tuple(validator.execution_retries for validator in bound.validators),
            corrections=bound.producer.correction == SINGLE_RESPONSE_V1,
            blind_retries=bound.blind_retries,
            policy=self._policies[stage],
            max_recoveries=max_recoveries,
            max_reopens=max_reopens,
            max_throttles=max_throttles,
        )

    def worst_case(self) -> WorstCase:
        """The most that one item can cost: model generations, and calls of each validator."""
        return worst_case(
            [
                (
                    stage.name,
                    stage.retries,
                    stage.producer.repairs,
                    {validator.name: validator.execution_retries for validator in stage.validators},
                )
                for stage in self.stages
            ]
        )

    def __repr__(self) -> str:
        return f"<pipeline {self.name!r} version {self.version!r}: {', '.join(s.name for s in self.stages)}>"


def _feeds(where: str, registries: object, output: object) -> tuple[Feed[Any], ...]:
    """What a pipeline feeds whose last stage gives `output`. Raises `PipelineError` naming the place."""
    if isinstance(registries, str | bytes) or not isinstance(registries, Sequence):
        raise PipelineError(where, f"registries must be a list, not {type(registries).__name__}")
    feeds: list[Feed[Any]] = []
    for place, given in enumerate(registries):
        if isinstance(given, Registry):
            if not isinstance(output, type) or not issubclass(output, given.entry):
                gives = getattr(output, "__name__", None) or "any JSON value"
                raise PipelineError(
                    where,
                    f"registries[{place}]: registry {given.name!r} takes {given.entry.__name__}, but the last stage "
                    f"gives {gives}; turn one into the other with Feed(registry, make, version=...)",
                )
            given = Feed(given, _as_it_is, version="1")
        if not isinstance(given, Feed):
            raise PipelineError(
                where, f"registries[{place}] must be a Registry or a Feed, not {type(given).__name__}"
            )
        if any(feed.registry.name == given.registry.name for feed in feeds):
            raise PipelineError(where, f"two registries are called {given.registry.name!r}")
        feeds.append(given)
    return tuple(feeds)


def _as_it_is(value: Any, context: Context) -> Any:
    return value


def load(target: str) -> Pipeline:
    """The pipeline at `module:attribute`, importable from the working directory too.

    Raises `PipelineError` saying what is missing. A pipeline in `__main__` is refused: a worker could not import it.
    """
    found, attribute = _imported(target, "pipeline")
    if isinstance(found, Registry):
        raise PipelineError(
            repr(target), f"{attribute!r} is a registry, not a pipeline; name the pipeline that feeds it"
        )
    if not isinstance(found, Pipeline):
        raise PipelineError(repr(target), f"expected a Pipeline under {attribute!r}, found {_kind_of(found)}")
    # Asked for here, so that what cannot be fingerprinted is refused before any work begins.
    _ = found.fingerprint
    return found


def load_registry(target: str) -> Registry[Any]:
    """The registry at `module:attribute`, or at `module:attribute#name` among those that a pipeline feeds.

    Raises `PipelineError` as `load` does.
    """
    place, marked, name = target.partition("#") if isinstance(target, str) else (target, "", "")
    found, attribute = _imported(place, "registry")
    if isinstance(found, Pipeline):
        fed = {feed.registry.name: feed.registry for feed in found.registries}
        if name not in fed:
            choices = ", ".join(f"{place}#{known}" for known in fed) or "none"
            raise PipelineError(
                repr(target),
                f"{attribute!r} is a pipeline; name one of the registries that it feeds: {choices}",
            )
        found = fed[name]
    elif marked or not isinstance(found, Registry):
        wanted = "a Pipeline that feeds registries" if marked else "a Registry"
        raise PipelineError(repr(target), f"expected {wanted} under {attribute!r}, found {_kind_of(found)}")
    _ = found.pipeline.fingerprint
    return found


def load_target(target: str) -> Pipeline:
    """The pipeline that a run names: one as `load` finds it, or that of a registry as `load_registry` finds it."""
    if isinstance(target, str) and ("#" in target or isinstance(_imported(target, "pipeline")[0], Registry)):
        return load_registry(target).pipeline
    return load(target)


def _kind_of(found: object) -> str:
    return "nothing" if found is None else f"a {type(found).__name__}"


def _imported(target: str, kind: str) -> tuple[Any, str]:
    """What stands at `module:attribute`, `None` for nothing, and the attribute's name."""
    if not isinstance(target, str):
        raise PipelineError("load", f"name a {kind} as MODULE:ATTRIBUTE, not by a {type(target).__name__}")
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise PipelineError(
            repr(target), f"name a {kind} as MODULE:ATTRIBUTE, for example shop.pipeline:{kind}"
        )
    if module_name == "__main__":
        raise PipelineError(
            repr(target), f"a {kind} in __main__ cannot be imported by a worker; move it to a module"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except PipelineError:
        raise
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(missing + "."):
            problem = f"there is no module {missing!r} here or on the import path"
        else:
            problem = f"its module imports {missing!r}, which is not installed"
        raise PipelineError(repr(target), problem) from None
    except (Exception, SystemExit) as error:
        place = place_of(error, module_name)
        raise PipelineError(
            repr(target), f"importing its module raised {place.type} at {place.at}"
        ) from error
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    return found, attribute
