"""Calls of authors' code: deadlines that hold on any thread, and the place where an error arose."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from remand.calls import CalleeRaised, CallTimedOut, call, hung_calls, place_of

HERE = __name__
SHORT = 0.4
"""A deadline that is meant to pass, in seconds; calls that are meant to return get a generous one."""

SEEN: contextvars.ContextVar[str] = contextvars.ContextVar("SEEN", default="nothing")


def until(condition: Callable[[], bool], *, within: float = 20.0) -> None:
    """Wait for `condition`, and fail if it does not come true."""
    end, pause = time.monotonic() + within, threading.Event()
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        pause.wait(0.005)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Lets blocked calls go when the test is over, so that no thread outlives it."""
    event = threading.Event()
    yield event
    event.set()
    until(lambda: hung_calls() == 0)


def spin() -> None:
    while True:
        pass


def timed_out(function: Callable[..., Any], *args: Any) -> tuple[CallTimedOut, float]:
    began = time.monotonic()
    with pytest.raises(CallTimedOut) as caught:
        call(function, *args, timeout=SHORT)
    return caught.value, time.monotonic() - began


def raised_by(function: Callable[..., Any]) -> BaseException:
    with pytest.raises(CalleeRaised) as caught:
        call(function, timeout=20)
    return caught.value.error


# ------------------------------------------------------------------------------------------------- results


def test_a_plain_function_gives_its_result() -> None:
    assert call(lambda a, b: a + b, 1, 2, timeout=20) == 3


def test_a_coroutine_function_is_awaited() -> None:
    async def add(a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a + b

    assert call(add, 1, 2, timeout=20) == 3


def test_a_callable_object_that_returns_an_awaitable_is_awaited() -> None:
    class Later:
        async def __call__(self) -> str:
            return "done"

    assert call(Later(), timeout=20) == "done"


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_context_variables_of_the_caller_are_visible_and_its_own_changes_are_not(kind: str) -> None:
    def plain() -> str:
        seen = SEEN.get()
        SEEN.set("changed")
        return seen

    async def coroutine() -> str:
        return plain()

    token = SEEN.set("the caller's")
    try:
        assert call(plain if kind == "plain" else coroutine, timeout=20) == "the caller's"
        assert SEEN.get() == "the caller's"
    finally:
        SEEN.reset(token)


# ----------------------------------------------------------------------------------------------- time-outs


def test_a_pure_python_loop_is_ended_and_its_thread_goes() -> None:
    error, seconds = timed_out(spin)
    assert seconds < 1.5 * SHORT + 1
    assert error.place is not None
    assert error.place.startswith(f"{HERE}:spin:")
    until(lambda: hung_calls() == 0)


def test_a_deadline_holds_on_a_pool_thread() -> None:
    with ThreadPoolExecutor(1) as pool:
        error, _ = pool.submit(timed_out, spin).result(timeout=20)
    assert isinstance(error, CallTimedOut)
    until(lambda: hung_calls() == 0)


def test_a_deadline_holds_on_the_thread_of_a_running_event_loop() -> None:
    async def on_a_loop() -> tuple[CallTimedOut, float]:
        return timed_out(spin)

    error, _ = asyncio.run(on_a_loop())
    assert isinstance(error, CallTimedOut)
    until(lambda: hung_calls() == 0)


def test_a_call_that_never_returns_to_python_is_counted_until_it_ends(release: threading.Event) -> None:
    timed_out(release.wait)
    assert hung_calls() == 1
    timed_out(release.wait)
    assert hung_calls() == 2
    release.set()
    until(lambda: hung_calls() == 0)


def test_a_coroutine_is_cancelled_and_says_where_it_waited() -> None:
    cancelled = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    error, seconds = timed_out(forever)
    assert seconds < 1.5 * SHORT + 1
    assert error.place is not None
    assert error.place.startswith(f"{HERE}:forever:")
    assert cancelled.wait(20)
    assert hung_calls() == 0


def test_a_coroutine_that_blocks_the_loop_is_left_and_later_coroutines_run(release: threading.Event) -> None:
    async def block() -> None:
        release.wait()

    async def quick() -> str:
        return "served"

    error, _ = timed_out(block)
    assert error.place is not None
    assert error.place.startswith(f"{HERE}:block:")
    assert hung_calls() == 1
    assert call(quick, timeout=20) == "served"


def test_a_coroutine_that_spins_is_ended_and_others_on_its_loop_finish() -> None:
    async def spinning() -> None:
        spin()

    async def quick() -> str:
        return "served"

    error, _ = timed_out(spinning)
    assert error.place is not None
    assert error.place.startswith(f"{HERE}:spin:")
    until(lambda: hung_calls() == 0)
    assert call(quick, timeout=20) == "served"


def test_twenty_hanging_calls_leave_no_threads_behind() -> None:
    before = threading.active_count()
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(timed_out, [spin] * 20))
    until(lambda: hung_calls() == 0)
    until(lambda: threading.active_count() <= before + 1)  # the event loop of all coroutines may be new


def test_a_time_out_raised_by_the_function_is_its_own_error() -> None:
    def gives_up() -> None:
        raise TimeoutError("mine")

    assert type(raised_by(gives_up)) is TimeoutError


# -------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_whatever_a_plain_function_raises_is_wrapped(kind: type[BaseException]) -> None:
    def fail() -> None:
        raise kind("secret")

    assert type(raised_by(fail)) is kind


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_whatever_a_coroutine_raises_is_wrapped_and_the_loop_lives(kind: type[BaseException]) -> None:
    async def fail() -> None:
        raise kind("secret")

    async def quick() -> str:
        return "served"

    assert type(raised_by(fail)) is kind
    assert call(quick, timeout=20) == "served"


def test_a_subtask_that_raises_system_exit_does_not_take_the_loop_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def leave() -> None:
        raise SystemExit("secret")

    async def parent() -> None:
        await asyncio.create_task(leave())

    async def quick() -> str:
        return "served"

    assert type(raised_by(parent)) is SystemExit
    assert call(quick, timeout=20) == "served"
    assert "secret" not in caplog.text


def test_an_error_that_a_cancelled_coroutine_ends_in_is_not_logged_with_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended = threading.Event()

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
            raise ValueError("secret")

    timed_out(stubborn)
    assert ended.wait(20)
    assert "secret" not in caplog.text


def test_an_error_that_nobody_awaits_is_reported_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("secret")

    async def parent() -> str:
        forgotten = asyncio.create_task(fail())
        await asyncio.wait([forgotten])
        return "done"

    assert call(parent, timeout=20) == "done"

    def reported() -> bool:
        gc.collect()
        return "asynchronous code left an error behind: ValueError" in caplog.text

    until(reported)
    assert "secret" not in caplog.text


def test_wrong_arguments_of_a_coroutine_function_are_its_error() -> None:
    async def needs_one(value: int) -> int:
        return value

    assert type(raised_by(needs_one)) is TypeError


def test_errors_of_calls_can_be_pickled_and_hold_no_text() -> None:
    wrapped = CalleeRaised(ValueError("secret"))
    assert "secret" not in str(wrapped)
    late = pickle.loads(pickle.dumps(CallTimedOut("module:function:3")))
    assert late.place == "module:function:3"


# -------------------------------------------------------------------------------------------------- places


def test_a_place_names_module_function_and_line_of_the_authors_code() -> None:
    def parse() -> Any:
        return int("secret")

    error = raised_by(parse)
    line = parse.__code__.co_firstlineno + 1
    assert place_of(error, parse).at == f"{HERE}:parse:{line}"
    assert place_of(error, parse).type == "ValueError"


def test_a_place_in_a_library_is_told_by_the_authors_line_that_called_it() -> None:
    import json

    def parse() -> Any:
        return json.loads("{secret")

    place = place_of(raised_by(parse), parse)
    assert place.type == "JSONDecodeError"
    assert place.at.startswith(f"{HERE}:parse:")


def test_a_partial_is_told_by_the_function_inside_it() -> None:
    def divide(by: int) -> float:
        return 1 / by

    bound = functools.partial(divide, 0)
    assert place_of(raised_by(bound), bound).at.startswith(f"{HERE}:divide:")


def test_a_time_out_without_a_known_place_names_the_function() -> None:
    place = place_of(CallTimedOut(), spin)
    assert (place.type, place.at) == ("TimeoutError", f"{HERE}:spin:0")


def test_a_type_name_is_made_safe_and_bounded() -> None:
    odd = type("Odd name\n" + "x" * 200, (Exception,), {})
    place = place_of(odd(), spin)
    assert place.type.startswith("Odd_name_x")
    assert len(place.type) <= 80
