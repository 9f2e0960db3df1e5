"""Pipelines: everything that is refused when they are made or loaded, their fingerprints and their worst case."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from remand import (
    SINGLE_RESPONSE_V1,
    Bounds,
    Context,
    Pipeline,
    PipelineError,
    Policy,
    Produced,
    Producer,
    Stage,
    Validator,
    accept,
    load,
)
from remand.authoring import FunctionProducer


class Out(BaseModel):
    x: int


class Other(BaseModel):
    y: int


def make(context: Context, correction: object) -> Produced:
    return Produced(context.input)


def check(value: Any, context: Context) -> Any:
    """It must be right."""
    return accept()


def a_validator(name: str = "check", **settings: Any) -> Validator:
    return Validator(check, name, **{"version": "1", **settings})


def a_producer(**settings: Any) -> FunctionProducer:
    return FunctionProducer(
        make, **{"version": "1", "output": Out, "correction": SINGLE_RESPONSE_V1, **settings}
    )


def a_stage(name: str = "extract", **settings: Any) -> Stage:
    given = {"producer": a_producer(), "validators": [a_validator()], **settings}
    return Stage(name, given.pop("producer"), given.pop("validators"), **given)


def a_pipeline(*stages: Stage, **settings: Any) -> Pipeline:
    return Pipeline(**{"name": "p", "version": "1", "stages": list(stages) or [a_stage()], **settings})


def refused(build: Callable[[], object]) -> str:
    with pytest.raises(PipelineError) as caught:
        build()
    return str(caught.value)


# ----------------------------------------------------------------------------------------- refused when made


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"producer": make}, "producer must be a Producer, not function; decorate it with @producer(version=...)"),
        ({"producer": None}, "producer must be a Producer, not NoneType"),
        ({"validators": [check]}, "validators[0]: 'check' has no version; decorate it with @validator"),
        ({"validators": [a_validator(), lambda value, context: accept()]}, "validators[1]: '<lambda>' has no version"),
        ({"validators": [5]}, "validators[0]: int is not callable"),
        ({"validators": "check"}, "validators must be a list, not str"),
        ({"validators": a_validator()}, "validators must be a list, not Validator"),
        ({"validators": {a_validator()}}, "validators must be a list, not set"),
        ({"validators": [a_validator(), a_validator()]}, "two validators are called 'check'"),
        ({"retries": -1}, "retries must not be negative, it is -1"),
        ({"retries": 1.5}, "retries must be a whole number, not float"),
        ({"retries": True}, "retries must be a whole number, not bool"),
        ({"blind_retries": 1}, "blind_retries must be True or False"),
        ({"deadline": 60}, "deadline must be a positive timedelta"),
        ({"deadline": timedelta(0)}, "deadline must be a positive timedelta"),
        ({"policy": "quarantine"}, "policy must be a mapping"),
        ({"policy": {"semantics": "quarantine"}}, "'semantics' is not a policy field"),
        ({"policy": {"contract_failure": "quarantine"}}, "'contract_failure' is not a policy field"),
        ({"policy": {"semantic_rejection": "ignore"}}, "'ignore' is not one of"),
        ({"policy": {"retain_quarantined": timedelta(1)}}, "'retain_quarantined' is not a policy field"),
        ({"backoff": -1}, "backoff must be a number of seconds from 0 to 60"),
        ({"backoff": 61}, "backoff must be a number of seconds from 0 to 60"),
        ({"backoff": True}, "backoff must be a number of seconds"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else value[:40],
)  # fmt: skip
def test_a_stage_is_refused_by_the_field_that_is_wrong(settings: dict[str, Any], problem: str) -> None:
    message = refused(lambda: a_stage(**settings))
    assert message.startswith("stage 'extract': ")
    assert problem in message


@pytest.mark.parametrize("name", ["", None, "a b", "a/b", "x" * 101, "a\nb"], ids=repr)
def test_names_are_checked(name: Any) -> None:
    assert "name" in refused(lambda: a_stage(name))
    assert "name" in refused(lambda: a_pipeline(name=name))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"version": ""}, "version must be a non-empty string"),
        ({"version": 1}, "version must be a non-empty string; it is int"),
        ({"stages": []}, "stages must be a list with at least one Stage"),
        ({"stages": "extract"}, "stages must be a list"),
        ({"stages": a_stage()}, "stages must be a list"),
        ({"stages": [a_producer()]}, "stages[0] must be a Stage, not FunctionProducer"),
        ({"stages": [a_stage(), a_stage()]}, "two stages are called 'extract'"),
        ({"policy": {"semantic_rejection": "quarantine"}}, "policy must be a Policy, not dict"),
        ({"bounds": 400}, "bounds must be Bounds, not int"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else value[:40],
)
def test_a_pipeline_is_refused_by_the_field_that_is_wrong(settings: dict[str, Any], problem: str) -> None:
    message = refused(lambda: a_pipeline(**settings))
    assert message.startswith("pipeline 'p': ")
    assert problem in message


def test_a_validator_may_have_the_same_name_in_two_stages() -> None:
    assert a_pipeline(a_stage("one"), a_stage("two")).worst_case().validator_calls.keys() == {
        "one/check",
        "two/check",
    }


def test_what_has_no_plain_description_cannot_be_fingerprinted() -> None:
    class Odd(Producer[Any]):
        def describe(self) -> dict[str, Any]:
            return {"prompt": object()}

    message = refused(lambda: a_pipeline(a_stage(producer=Odd("odd", version="1"))).fingerprint)
    assert message.startswith("pipeline 'p', stage 'extract': cannot be fingerprinted")


def test_neighbouring_validators_that_share_a_queue_are_one_group() -> None:
    queues = [None, None, "slow", "slow", None]
    stage = a_stage(validators=[a_validator(f"v{i}", queue=queue) for i, queue in enumerate(queues)])
    assert stage.groups == ((0, 1), (2, 3), (4,))


def test_a_stage_overrides_single_fields_of_the_policy() -> None:
    stage = a_stage(policy={"semantic_rejection": "quarantine"})
    rules = a_pipeline(stage, policy=Policy(operational_failure="warn_continue")).rules(0)
    assert rules.policy == Policy(semantic_rejection="quarantine", operational_failure="warn_continue")


# ---------------------------------------------------------------------------------------------------- load

GOOD = """
from remand import Pipeline, Producer, Stage
pipeline = Pipeline("loaded", version="1", stages=[Stage("only", Producer("p", version="1"))])
class Box:
    inner = pipeline
other = 5
"""
MODULES = {
    "load_good": GOOD,
    "load_broken": "x = 1\n\ny = 1 / 0\n",
    "load_exits": "import sys\nsys.exit('secret')\n",
    "load_syntax": "this is no python\n",
    "load_imports": "import no_such_library\n",
    "load_refused": "from remand import Pipeline\np = Pipeline('p', version='1', stages=[])\n",
    "load_lambda": GOOD.replace('Producer("p", version="1")', 'Producer("p", version="1", output=5)'),
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("target", ["load_good:pipeline", "load_good:Box.inner"])
def test_a_pipeline_is_loaded_from_the_working_directory(target: str) -> None:
    assert load(target).name == "loaded"


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("load_good", "name a pipeline as MODULE:ATTRIBUTE"),
        ("load_good:", "name a pipeline as MODULE:ATTRIBUTE"),
        (":pipeline", "name a pipeline as MODULE:ATTRIBUTE"),
        ("", "name a pipeline as MODULE:ATTRIBUTE"),
        (None, "name a pipeline as MODULE:ATTRIBUTE, not by a NoneType"),
        ("__main__:pipeline", "cannot be imported by a worker"),
        ("load_nothing:pipeline", "there is no module 'load_nothing' here or on the import path"),
        ("load_nothing.deeper:pipeline", "there is no module 'load_nothing'"),
        ("load_good.deeper:pipeline", "there is no module"),
        ("load_good:missing", "expected a Pipeline under 'missing', found nothing"),
        ("load_good:other", "expected a Pipeline under 'other', found a int"),
        ("load_good:pipeline.name.x", "found nothing"),
        ("load_good:Box", "found a type"),
        ("load_imports:p", "its module imports 'no_such_library', which is not installed"),
        ("load_broken:p", "importing its module raised ZeroDivisionError at load_broken:<module>:3"),
        ("load_exits:p", "importing its module raised SystemExit at load_exits:<module>:2"),
        ("load_syntax:p", "importing its module raised SyntaxError"),
        ("load_refused:p", "stages must be a list with at least one Stage"),
        ("load_lambda:pipeline", "output is no type that pydantic takes"),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_what_to_mend(target: Any, problem: str) -> None:
    message = refused(lambda: load(target))
    assert problem in message
    assert "secret" not in message


# ---------------------------------------------------------------------------------------------- fingerprints

COVERED: dict[str, Callable[[], Stage]] = {
    "stage name": lambda: a_stage("renamed"),
    "producer name": lambda: a_stage(producer=a_producer(name="renamed")),
    "producer version": lambda: a_stage(producer=a_producer(version="2")),
    "capability": lambda: a_stage(producer=a_producer(correction=None)),
    "repairs": lambda: a_stage(producer=a_producer(repairs=3)),
    "output schema": lambda: a_stage(producer=a_producer(output=Other)),
    "no output": lambda: a_stage(producer=a_producer(output=None)),
    "validator name": lambda: a_stage(validators=[a_validator("renamed")]),
    "validator version": lambda: a_stage(validators=[a_validator(version="2")]),
    "validator description": lambda: a_stage(validators=[a_validator(description="Other words.")]),
    "validator budget": lambda: a_stage(validators=[a_validator(execution_retries=0)]),
    "no validators": lambda: a_stage(validators=[]),
    "one more validator": lambda: a_stage(validators=[a_validator(), a_validator("more")]),
    "retries": lambda: a_stage(retries=3),
    "blind retries": lambda: a_stage(blind_retries=True),
    **{
        f"policy {field}": lambda field=field: a_stage(policy={field: "quarantine"})  # type: ignore[misc]
        for field in (
            "structural_failure", "semantic_rejection", "validator_execution_failure", "operational_failure",
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("change", COVERED)
def test_a_covered_change_changes_the_fingerprint(change: str) -> None:
    changed = a_pipeline(COVERED[change]())
    assert changed.stage_fingerprints != a_pipeline().stage_fingerprints
    assert changed.fingerprint != a_pipeline().fingerprint


def test_the_order_of_validators_is_covered() -> None:
    one, two = a_validator("one"), a_validator("two")
    ahead, back = (a_pipeline(a_stage(validators=order)) for order in ([one, two], [two, one]))
    assert ahead.fingerprint != back.fingerprint


@pytest.mark.parametrize("bounds", [Bounds(finding=100), Bounds(findings=3), Bounds(total=900)], ids=repr)
def test_the_bounds_of_corrections_are_covered(bounds: Bounds) -> None:
    assert a_pipeline(bounds=bounds).stage_fingerprints != a_pipeline().stage_fingerprints


def test_the_pipelines_policy_is_covered_where_a_stage_does_not_override_it() -> None:
    loose = Policy(semantic_rejection="quarantine")
    assert a_pipeline(policy=loose).stage_fingerprints != a_pipeline().stage_fingerprints
    stage = a_stage(policy={"semantic_rejection": "quarantine"})
    assert a_pipeline(stage, policy=loose).stage_fingerprints == a_pipeline(stage).stage_fingerprints


def test_a_change_reaches_the_later_stages_and_not_the_earlier_ones() -> None:
    before = a_pipeline(a_stage("one"), a_stage("two"), a_stage("three")).stage_fingerprints
    after = a_pipeline(a_stage("one"), a_stage("two", retries=5), a_stage("three")).stage_fingerprints
    assert before[0] == after[0]
    assert before[1] != after[1]
    assert before[2] != after[2]


UNCOVERED: dict[str, Callable[[], Stage]] = {
    "time-out of a validator": lambda: a_stage(validators=[a_validator(timeout=3.0)]),
    "queue of a validator": lambda: a_stage(validators=[a_validator(queue="slow")]),
    "time-out of the producer": lambda: a_stage(producer=a_producer(timeout=3.0)),
    "deadline": lambda: a_stage(deadline=timedelta(hours=1)),
    "backoff": lambda: a_stage(backoff=0.0),
}


@pytest.mark.parametrize("change", UNCOVERED)
def test_what_cannot_change_a_value_or_a_verdict_is_not_covered(change: str) -> None:
    assert a_pipeline(UNCOVERED[change]()).fingerprint == a_pipeline().fingerprint


def test_retention_is_not_covered() -> None:
    kept = a_pipeline(policy=Policy(retain_quarantined=timedelta(days=1)))
    assert kept.fingerprint == a_pipeline().fingerprint


def test_name_and_version_of_a_pipeline_are_its_own_and_not_its_stages() -> None:
    for changed in (a_pipeline(name="q"), a_pipeline(version="2")):
        assert changed.fingerprint != a_pipeline().fingerprint
        assert changed.stage_fingerprints == a_pipeline().stage_fingerprints


def test_fingerprints_are_the_same_in_every_process_and_under_every_hash_seed(tmp_path: Path) -> None:
    (tmp_path / "stable.py").write_text(
        textwrap.dedent(
            """
            from enum import Enum
            from typing import Literal
            from pydantic import BaseModel
            from remand import Pipeline, Policy, Producer, Stage, Validator, accept
            class Kind(Enum):
                A = "a"
                B = "b"
            class Out(BaseModel):
                kind: Kind
                words: set[Literal["x", "y", "z"]]
                other: dict[str, float | None] = {}
            def check(value, context):
                "It must be right."
                return accept()
            pipeline = Pipeline("p", version="1", policy=Policy(semantic_rejection="quarantine"), stages=[
                Stage("one", Producer("p", version="1", output=Out), [Validator(check, version="1")]),
                Stage("two", Producer("q", version="1"), policy={"operational_failure": "quarantine"}),
            ])
            print(pipeline.fingerprint)
            """
        )
    )
    seen = {
        subprocess.run(
            [sys.executable, "stable.py"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(seen) == 1
    assert len(seen.pop().strip()) == 64


# ------------------------------------------------------------------------------------------------ worst case


def test_the_worst_case_is_exact() -> None:
    pipeline = a_pipeline(
        a_stage(
            "one",
            retries=2,
            producer=a_producer(repairs=1),
            validators=[a_validator("v", execution_retries=1), a_validator("w", execution_retries=0)],
        ),
        a_stage("two", retries=0, producer=a_producer(repairs=0), validators=[a_validator("v")]),
    )
    worst = pipeline.worst_case()
    assert worst.generations == 3 * 2 + 1
    assert dict(worst.validator_calls) == {"one/v": 6, "one/w": 3, "two/v": 2}
