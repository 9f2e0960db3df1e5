"""No representation of a public value shows content, and every error can be pickled with its attributes."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

import remand
from remand import (
    SINGLE_RESPONSE_V1,
    Context,
    Correction,
    Finding,
    Forbidden,
    Groups,
    ModelResponse,
    Outcome,
    Pipeline,
    Policy,
    Produced,
    Producer,
    Rejected,
    RemandError,
    RetryRequest,
    Stage,
    Usage,
    Validation,
    Validator,
    Verdict,
    VerdictRecord,
    accept,
    reject,
    run_local,
)
from remand.attempt import Attempted, Judged
from remand.blocks import BlockRecord, Member
from remand_policy import Defect, Grouping, Production, Status

MARKER = "marker-77c2"
PACKAGES = ("remand_policy", "remand", "remand_tasks", "remand_workers")

RESPONSE = ModelResponse(MARKER, model=MARKER, usage=Usage(3, 4), finish_reason=MARKER)
RECORD = VerdictRecord(
    validator="v",
    verdict=Verdict.UNDETERMINED,
    error_type="ValueError",
    error_at="m:f:3",
    error=ValueError(MARKER),
)
VALUES: list[Any] = [
    RESPONSE,
    Produced(MARKER, RESPONSE),
    Produced({MARKER: [MARKER]}),
    RetryRequest(MARKER, MARKER, MARKER, guidance=MARKER, response=RESPONSE, diagnostics=(MARKER,)),
    Correction(SINGLE_RESPONSE_V1, MARKER, MARKER),
    Context(input={"text": MARKER}, run_id="r", item=1, stage="s", attempt=1, previous=MARKER),
    Finding(MARKER, path=MARKER, code=MARKER),
    reject(MARKER, path=MARKER, code=MARKER),
    reject([Finding(MARKER), Finding(MARKER)]),
    accept(),
    Outcome(status=Status.ACCEPTED, value={"a": MARKER}, verdicts=(RECORD,)),
    RECORD,
    Validation(("stage/validator",)),
    Attempted(
        production=Production.RETRY,
        candidate=MARKER.encode(),
        response=RESPONSE,
        guidance=MARKER,
        fallback=MARKER.encode(),
        operator_message=MARKER,
        error=ValueError(MARKER),
    ),
    Forbidden("rule", MARKER, (0, 1)),
    Groups(groups=[[MARKER]], apart=[MARKER], unsure=[[MARKER]]),
    BlockRecord(id="r1", entry="e", version=1, cluster="c", record={MARKER: MARKER}),
    Member(cluster="c", record={MARKER: MARKER}),
    Grouping(((MARKER,),), (MARKER,), ((MARKER,),)),
    Defect("rule", 1, (MARKER,), MARKER),
    Judged(verdict=Verdict.REJECTED, findings=(Finding(MARKER),), error=ValueError(MARKER)),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_no_representation_shows_content(value: Any) -> None:
    assert MARKER not in repr(value)
    assert MARKER not in str(value)
    assert MARKER not in f"{[value]}{(value,)}"
    assert type(value).__name__ in repr(value) or isinstance(value, str)


def test_every_public_dataclass_is_among_those_looked_at() -> None:
    harmless = {"Accepted", "Bounds", "Policy", "Usage", "WorstCase"}
    public = {name for name in remand.__all__ if dataclasses.is_dataclass(getattr(remand, name))}
    assert public - harmless <= {type(value).__name__ for value in VALUES}


def same(one: Any, other: Any) -> bool:
    """Equality that takes exceptions for equal when their types and arguments are."""
    if isinstance(one, BaseException):
        return type(one) is type(other) and one.args == other.args
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        return type(one) is type(other) and all(
            same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one)
        )
    return bool(one == other)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_can_be_pickled(value: Any) -> None:
    assert same(pickle.loads(pickle.dumps(value)), value)


def test_a_validation_keeps_its_names_when_pickled() -> None:
    copy = pickle.loads(pickle.dumps(Validation(("a/b",))))
    assert copy == "incomplete"
    assert copy.validators == ("a/b",)


def make(context: Context, correction: object) -> Produced:
    return Produced(context.input)


def test_pipelines_and_their_parts_show_names_only() -> None:
    validator = Validator(lambda value, context: accept(), "v", version="1", description=MARKER)
    producer = Producer[Any]("p", version="1", output=str)
    pipeline = Pipeline("name", version="1", stages=[Stage("s", producer, [validator])], policy=Policy())
    for part in (pipeline, pipeline.stages[0], producer, validator):
        assert MARKER not in repr(part)


def test_an_outcome_of_a_run_shows_no_input_no_value_and_no_exception_text(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(value: Any, context: Context) -> Any:
        raise ValueError(f"{MARKER} {value}")

    def rejecting(value: Any, context: Context) -> Any:
        return reject(MARKER, path=MARKER)

    from remand.authoring import FunctionProducer

    for checks in ([broken], [rejecting], [broken, rejecting]):
        validators = [Validator(check, version="1", execution_retries=0) for check in checks]
        stage = Stage("s", FunctionProducer(make, version="1"), validators)
        (outcome,) = run_local(Pipeline("p", version="1", stages=[stage]), [{"text": MARKER}])
        assert MARKER not in repr(outcome)
    assert MARKER not in caplog.text
    assert MARKER not in "".join(capfd.readouterr())


# -------------------------------------------------------------------------------------------------- errors


def errors() -> list[type[RemandError]]:
    """Every error class that the four packages define."""
    for name in PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, name + "."):
            # A `__main__` runs when imported, migration scripts need Alembic's context.
            if not module.name.endswith("__main__") and ".migrations" not in module.name:
                importlib.import_module(module.name)

    def below(kind: type[RemandError]) -> Iterator[type[RemandError]]:
        for child in kind.__subclasses__():
            if child.__module__.split(".")[0] in PACKAGES:
                yield child
                yield from below(child)

    return sorted({RemandError, *below(RemandError)}, key=lambda kind: f"{kind.__module__}.{kind.__name__}")


def example(kind: type[RemandError]) -> RemandError:
    """One error of `kind`, its constructor given something recognizable for each parameter."""
    given: dict[str, Any] = {}
    positional: list[Any] = []
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        if name == "self" or parameter.kind is parameter.VAR_KEYWORD:
            continue
        value = _sample(name, str(parameter.annotation))
        if parameter.kind is parameter.KEYWORD_ONLY:
            given[name] = value
        else:
            positional.append(value)
    return kind(*positional, **given)


def _sample(name: str, annotation: str) -> Any:
    for word, value in (
        ("Usage", Usage(3, 4)),
        ("Sequence[tuple[str, str]]", (("A_NAME", "a problem"),)),
        ("tuple[str, str]", ("A_NAME", "a problem")),
        ("Sequence", ("a.b", "c.d")),
        ("tuple", ("a.b", "c.d")),
        ("list", ["a.b", "c.d"]),
        ("int", 7),
        ("float", 2.5),
        ("bool", True),
    ):
        if word in annotation:
            return value
    return f"a_{name}"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_error_can_be_pickled_with_its_attributes() -> None:
    kinds = errors()
    assert {"PipelineError", "StructuralFailure", "Throttled", "BadKey"} <= {kind.__name__ for kind in kinds}
    for kind in kinds:
        error = example(kind)
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is kind
        assert str(copy) == str(error)
        assert vars(copy) == vars(error), kind
        assert copy.args == error.args


def test_a_failure_keeps_what_it_cost_when_pickled() -> None:
    failure = remand.StructuralFailure("no_json", generations=3, usage=Usage(1, 2))
    copy = pickle.loads(pickle.dumps(failure))
    assert (copy.code, copy.generations, copy.usage) == ("no_json", 3, Usage(1, 2))
    throttled = pickle.loads(pickle.dumps(remand.Throttled(2.5, generations=1, usage=Usage(1, 0))))
    assert (throttled.retry_after, throttled.generations, throttled.usage) == (2.5, 1, Usage(1, 0))


def test_a_rejection_compares_by_its_findings_and_shows_none() -> None:
    assert Rejected((Finding(MARKER),)) == reject(MARKER)
    assert repr(reject(MARKER)) == (
        f"Rejected(findings=(Finding(<{len(MARKER)} characters>, path=None, code=None),), usage=None)"
    )
