"""One call of a producer and one call of a validator, and what they amount to. Both drivers use these two.

Whatever the author's code does, `produce` and `judge` return a value; they do not raise. Candidates cross as
JSON bytes, so each validator judges a copy of its own, and a value that cannot cross is a structural failure.
"""

from __future__ import annotations

import json
import logging
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from remand_policy import (
    SINGLE_RESPONSE_V1,
    Finding,
    Guidance,
    Judgement,
    Production,
    Report,
    Response,
    Verdict,
    breach,
)

from .authoring import Accepted, Producer, Rejected, Validator
from .calls import CalleeRaised, CallTimedOut, call, place_of
from .context import NO_USAGE, Context, Correction, ModelResponse, Produced, Redacted, RetryRequest, Usage
from .errors import Failure, StructuralFailure, Throttled

log = logging.getLogger("remand")

MAX_VALUE_BYTES = 8 * 1024 * 1024
MAX_FINDINGS = 1_000
MAX_FINDING = 20_000
MAX_PATH = 500
MAX_OPERATOR_MESSAGE = 2_000
MAX_COUNT = 1_000_000
_GRACE = 5.0
"""Seconds that a producer which keeps its own deadline is given beyond it."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Attempted(Redacted):
    """What one call of a producer gave. Texts and bytes are sensitive; the rest is codes and counts."""

    production: Production
    code: str | None = None
    candidate: bytes | None = None
    response: ModelResponse | None = None
    guidance: str | None = None
    fallback: bytes | None = None
    rank: int = 0
    reason_code: str | None = None
    operator_message: str | None = None
    diagnostics: tuple[str, ...] = ()
    retry_after: float | None = None
    generations: int = 0
    usage: Usage = NO_USAGE
    error_type: str | None = None
    error_at: str | None = None
    error: BaseException | None = None
    _shown = frozenset({"production", "code", "generations", "usage", "error_type", "error_at"})

    @property
    def response_state(self) -> Response:
        """Whether the response can be sent back."""
        if self.response is None:
            return Response.ABSENT
        return Response.USABLE if self.response.usable else Response.UNUSABLE

    @property
    def guidance_state(self) -> Guidance:
        """Whether there is guidance, and whether it says anything."""
        if self.guidance is None:
            return Guidance.ABSENT
        return Guidance.PRESENT if self.guidance.strip() else Guidance.BLANK

    def report(self, verdicts: tuple[Judgement, ...] = ()) -> Report:
        """This attempt as `decide` is told of it."""
        return Report(
            production=self.production,
            verdicts=verdicts,
            response=self.response_state,
            guidance=self.guidance_state,
            fallback=self.rank if self.fallback is not None else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Judged(Redacted):
    """What one call of a validator amounts to."""

    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    usage: Usage = NO_USAGE
    seconds: float = 0.0
    error_type: str | None = None
    error_at: str | None = None
    error: BaseException | None = None
    _shown = frozenset({"verdict", "usage", "seconds", "error_type", "error_at"})


def code_of(value: object) -> str:
    """`value` as a short code that is safe to show; whatever does not look like one becomes `invalid_code`."""
    text = value if isinstance(value, str) else ""
    return text if re.fullmatch(r"[A-Za-z0-9_.:\-]{1,64}", text) else "invalid_code"


def to_json(producer: Producer[Any], value: object) -> bytes:
    """`value` as the JSON bytes that cross between steps. Raises `StructuralFailure` where it cannot cross.

    Plain data that fits the output type, such as a dictionary for a model, is taken as that type.
    """
    return to_json_as(producer.adapter, value)


def to_json_as(adapter: TypeAdapter[Any], value: object) -> bytes:
    """`to_json` for a value of any type that has an adapter."""
    try:
        value = adapter.validate_python(value)
        plain = adapter.dump_python(value, mode="json", warnings="error", round_trip=True)
        lost = _loses_numbers(adapter.dump_python(value, round_trip=True), plain)
        data = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        adapter.validate_json(data)
    except (Exception, SystemExit):
        raise StructuralFailure("not_json") from None
    if lost:
        raise StructuralFailure("not_json")
    if len(data) > MAX_VALUE_BYTES:
        raise StructuralFailure("too_large")
    return data


def _loses_numbers(value: object, plain: object) -> bool:
    """Whether a NaN or an infinity of `value` became null in `plain`, which pydantic does without a word."""
    if isinstance(value, float):
        return plain is None and not math.isfinite(value)
    if isinstance(value, Mapping) and isinstance(plain, Mapping):
        return any(map(_loses_numbers, value.values(), plain.values()))
    if isinstance(value, list | tuple) and isinstance(plain, list):
        return any(map(_loses_numbers, value, plain))
    return False


def produce(producer: Producer[Any], context: Context, correction: Correction | None) -> Attempted:
    """One call of `producer`, within its deadline."""
    own_deadline = getattr(producer, "keeps_deadline", False)
    try:
        given = call(
            producer, context, correction, timeout=producer.deadline + (_GRACE if own_deadline else 0.0)
        )
    except (CalleeRaised, CallTimedOut) as raised:
        made = _failed(producer, raised.error if isinstance(raised, CalleeRaised) else raised)
    else:
        made = _given(producer, given)
    if made.production in _WORTH_A_WARNING:
        log.warning(
            "producer %s gave no candidate (stage %s, item %s, attempt %s): %s, %s%s",
            producer.name,
            context.stage,
            context.item,
            context.attempt,
            made.production.value,
            made.code,
            f", {made.error_type} at {made.error_at}" if made.error_type else "",
        )
    return made


_WORTH_A_WARNING = frozenset({Production.STRUCTURAL, Production.OPERATIONAL, Production.CONTRACT})


def _failed(producer: Producer[Any], error: BaseException) -> Attempted:
    if not isinstance(error, Failure):
        code, generations, usage = ("timeout" if isinstance(error, CallTimedOut) else "raised"), 1, NO_USAGE
    else:
        code = code_of(error.code)
        generations = error.generations if _is_count(error.generations) else 1
        usage = _usage(error.usage)
    if isinstance(error, Throttled):
        # A repair call that is throttled comes after a request that was answered. Doing the attempt again would pay
        # for that one twice and outside every budget, so it counts as an operational failure that waits as asked.
        return Attempted(
            production=Production.OPERATIONAL if generations > 0 else Production.THROTTLED,
            code="throttled",
            retry_after=_seconds(error.retry_after),
            generations=generations,
            usage=usage,
            error=error,
        )
    place = place_of(error, getattr(producer, "function", producer))
    structural = isinstance(error, StructuralFailure)
    return Attempted(
        production=Production.STRUCTURAL if structural else Production.OPERATIONAL,
        code=code,
        generations=generations,
        usage=usage,
        error_type=place.type,
        error_at=place.at,
        error=error,
    )


def _given(producer: Producer[Any], given: object) -> Attempted:
    if not isinstance(given, Produced | RetryRequest):
        return Attempted(production=Production.CONTRACT, code="return_type", generations=1)
    response = given.response if isinstance(given.response, ModelResponse) else None
    if response is not None and not isinstance(response.text, str):
        response = None
    usage = _usage(response.usage if response else None)
    if not _well_formed(given):
        return Attempted(production=Production.CONTRACT, code="field_type", generations=1, usage=usage)
    try:
        made = _made(producer, given, response, usage)
    except StructuralFailure as error:
        return Attempted(
            production=Production.STRUCTURAL,
            code=error.code,
            generations=given.generations,
            usage=usage,
            error=error,
        )
    broken = breach(made.report(), corrections=producer.correction == SINGLE_RESPONSE_V1)
    if broken:
        return Attempted(
            production=Production.CONTRACT, code=broken, generations=made.generations, usage=usage
        )
    return made


def _made(
    producer: Producer[Any], given: Produced | RetryRequest, response: ModelResponse | None, usage: Usage
) -> Attempted:
    if isinstance(given, Produced):
        return Attempted(
            production=Production.CANDIDATE,
            candidate=to_json(producer, given.value),
            response=response,
            generations=given.generations,
            usage=usage,
        )
    return Attempted(
        production=Production.RETRY,
        code=code_of(given.reason_code),
        reason_code=code_of(given.reason_code),
        operator_message=given.operator_message[:MAX_OPERATOR_MESSAGE],
        fallback=None if given.fallback is None else to_json(producer, given.fallback),
        rank=given.rank,
        guidance=given.guidance if isinstance(given.guidance, str | None) else "",
        response=response,
        diagnostics=tuple(code_of(code) for code in given.diagnostics[:8]),
        generations=given.generations,
        usage=usage,
    )


def _well_formed(given: Produced | RetryRequest) -> bool:
    """Whether the counts and codes are what the annotations say; texts are looked at where they are used."""
    if not _is_count(given.generations):
        return False
    if isinstance(given, Produced):
        return True
    return (
        isinstance(given.operator_message, str)
        and _is_count(abs(given.rank) if isinstance(given.rank, int) else None)
        and not isinstance(given.rank, bool)
        and isinstance(given.diagnostics, Sequence)
        and not isinstance(given.diagnostics, str | bytes)
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT


def _usage(usage: object) -> Usage:
    """`usage` if it counts tokens, else none."""
    if isinstance(usage, Usage) and all(
        isinstance(n, int) and n >= 0 for n in (usage.input_tokens, usage.output_tokens)
    ):
        return usage
    return NO_USAGE


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        return None
    return float(value)


def judge(
    validator: Validator,
    producer: Producer[Any],
    candidate: bytes,
    context: Callable[[], Context],
) -> Judged:
    """One call of `validator` on a copy of the candidate that is its own. `context` makes its own context too."""
    started = time.perf_counter()
    try:
        value = producer.adapter.validate_json(candidate)
        answer = call(validator.function, value, context(), timeout=validator.timeout)
        if type(answer) is Accepted:
            return Judged(
                verdict=Verdict.ACCEPTED,
                usage=_usage(answer.usage),
                seconds=time.perf_counter() - started,
            )
        if type(answer) is Rejected:
            return Judged(
                verdict=Verdict.REJECTED,
                findings=tuple(
                    Finding(
                        found.text[:MAX_FINDING],
                        path=found.path and found.path[:MAX_PATH],
                        code=None if found.code is None else code_of(found.code),
                    )
                    for found in answer.findings[:MAX_FINDINGS]
                ),
                usage=_usage(answer.usage),
                seconds=time.perf_counter() - started,
            )
        raise TypeError(f"a validator returned a {type(answer).__name__}, which is no verdict")
    except (Exception, SystemExit) as raised:
        error = raised.error if isinstance(raised, CalleeRaised) else raised
    seconds = time.perf_counter() - started
    place = place_of(error, validator.function)
    # Said after the handler: a worker's log takes the words of an exception in handling out of every record, and
    # these may be words of this one, such as the validator's name.
    log.warning(
        "validator %s could not judge (stage %s, item %s, attempt %s): %s at %s",
        validator.name,
        context().stage,
        context().item,
        context().attempt,
        place.type,
        place.at,
    )
    return Judged(
        verdict=Verdict.UNDETERMINED,
        usage=_usage(error.usage if isinstance(error, Failure) else None),
        seconds=seconds,
        error_type=place.type,
        error_at=place.at,
        error=error,
    )
