"""Policies: defaults, overrides, refusals, and how items end by their reason."""

from __future__ import annotations

import dataclasses
import pickle
from datetime import timedelta

import pytest

from remand_policy import Disposition, Policy, Reason, Status, closing_status

FIELDS = ("structural_failure", "semantic_rejection", "validator_execution_failure", "operational_failure")


def test_defaults_fail_the_run_but_for_validators_that_cannot_judge() -> None:
    policy = Policy()
    assert {reason: policy.of(reason) for reason in Reason} == {
        Reason.STRUCTURAL_FAILURE: Disposition.FAIL_RUN,
        Reason.SEMANTIC_REJECTION: Disposition.FAIL_RUN,
        Reason.VALIDATOR_EXECUTION_FAILURE: Disposition.WARN_CONTINUE,
        Reason.OPERATIONAL_FAILURE: Disposition.FAIL_RUN,
        Reason.CONTRACT_FAILURE: Disposition.FAIL_RUN,
    }
    assert policy.retain_quarantined is None


@pytest.mark.parametrize("disposition", Disposition)
@pytest.mark.parametrize("field", FIELDS)
def test_each_field_decides_its_own_reason_and_no_other(field: str, disposition: Disposition) -> None:
    default, policy = Policy(), Policy().override({field: disposition.value})
    for reason in Reason:
        expected = disposition if reason == field else default.of(reason)
        assert policy.of(reason) is expected


def test_override_keeps_the_other_fields() -> None:
    """D1."""
    pipeline = Policy(
        structural_failure="quarantine",
        semantic_rejection="warn_continue",
        operational_failure="quarantine",
        retain_quarantined=timedelta(days=1),
    )
    stage = pipeline.override({"semantic_rejection": "fail_run"})
    assert stage == dataclasses.replace(pipeline, semantic_rejection=Disposition.FAIL_RUN)
    assert pipeline.semantic_rejection == "warn_continue"
    assert pipeline.override({}) == pipeline


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", ["fail", "", None, 1, True, ["fail_run"], "FAIL_RUN"])
def test_unknown_disposition_is_refused_naming_field_and_choices(field: str, value: object) -> None:
    message = rf"Policy\.{field}: .* fail_run, warn_continue, quarantine"
    with pytest.raises(ValueError, match=message):
        Policy(**{field: value})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        Policy().override({field: value})  # type: ignore[dict-item]


@pytest.mark.parametrize("field", ["contract_failure", "retain_quarantined", "semantic", ""])
def test_override_of_a_field_that_is_no_reason_of_the_policy_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match="is not a policy field") as refused:
        Policy().override({field: "warn_continue"})
    assert all(name in str(refused.value) for name in FIELDS)


def test_contract_failure_has_no_field() -> None:
    assert "contract_failure" not in {field.name for field in dataclasses.fields(Policy)}
    with pytest.raises(TypeError):
        Policy(contract_failure="warn_continue")  # type: ignore[call-arg]


@pytest.mark.parametrize("keep", [timedelta(0), timedelta(days=-1), 3600, "1d", True])
def test_retention_must_be_a_positive_timedelta(keep: object) -> None:
    with pytest.raises(ValueError, match=r"Policy\.retain_quarantined must be a positive timedelta"):
        Policy(retain_quarantined=keep)  # type: ignore[arg-type]


def test_description_holds_every_field_in_plain_values() -> None:
    described = Policy(semantic_rejection="quarantine", retain_quarantined=timedelta(hours=1)).describe()
    assert described == {
        "structural_failure": "fail_run",
        "semantic_rejection": "quarantine",
        "validator_execution_failure": "warn_continue",
        "operational_failure": "fail_run",
        "retain_quarantined": 3600.0,
    }
    assert Policy().describe()["retain_quarantined"] is None


def test_policy_is_a_value() -> None:
    assert pickle.loads(pickle.dumps(Policy())) == Policy()
    assert Policy(semantic_rejection="quarantine") == Policy(semantic_rejection=Disposition.QUARANTINE)
    assert len({Policy(), Policy(semantic_rejection="fail_run")}) == 1


def test_only_a_rejection_ends_as_rejected() -> None:
    assert {reason for reason in Reason if closing_status(reason) is Status.REJECTED} == {
        Reason.SEMANTIC_REJECTION
    }
    assert {closing_status(reason) for reason in Reason} == {Status.REJECTED, Status.FAILED}
