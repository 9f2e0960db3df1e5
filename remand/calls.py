"""Calls of authors' code with a deadline that holds on any thread, and where in their code an error arose.

A plain function runs in a thread of its own and is abandoned when its time is up: Python cannot end a thread, so an
exception is raised inside it, which ends it unless it is stuck in a call that never returns to Python. Such threads
are counted (`hung_calls`), so that a worker can replace its process before they pile up. Coroutines run on one event
loop a process and are cancelled; a loop that one of them blocks is given up for a new one, and counted.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import functools
import inspect
import logging
import os
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

log = logging.getLogger("remand")


class CallTimedOut(TimeoutError):
    """A call outlived its deadline. `place` is where it stood, when that could be seen."""

    def __init__(self, place: str | None = None) -> None:
        super().__init__("timed out")
        self.place = place


class CalleeRaised(Exception):
    """Wraps whatever the called code raised, `SystemExit` too, so that it cannot be taken for the caller's own."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(type(error).__name__)
        self.error = error


class _Abandoned(BaseException):
    """Raised inside a thread that nobody waits for any more."""


@dataclass(frozen=True, slots=True)
class ErrorPlace:
    """An exception without its text: the name of its type, and `module:function:line`."""

    type: str
    at: str


_hung: set[threading.Thread] = set()
_hung_lock = threading.Lock()


def hung_calls() -> int:
    """How many threads of this process are held by calls that were abandoned."""
    with _hung_lock:
        _hung.difference_update([thread for thread in _hung if not thread.is_alive()])
        return len(_hung)


def call(function: Callable[..., Any], *args: Any, timeout: float) -> Any:
    """`function(*args)`, awaited if it gives something to await.

    Raises `CalleeRaised` around whatever it raised, and `CallTimedOut` after `timeout` seconds.
    """
    if inspect.iscoroutinefunction(function):
        try:
            made = function(*args)
        except Exception as wrong_arguments:
            raise CalleeRaised(wrong_arguments) from None
        return _await(made, function, timeout)
    running = _ThreadCall(function, args)
    try:
        result, error = running.done.result(timeout)
    except FutureTimeout:
        place = _where_it_stands(running.thread, function)
        running.abandon()
        raise CallTimedOut(place) from None
    if error is not None:
        raise CalleeRaised(error)
    return _await(result, function, timeout) if inspect.isawaitable(result) else result


# ------------------------------------------------------------------------------------------- plain functions


class _ThreadCall:
    """One call of a plain function on a thread of its own."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.done: Future[tuple[Any, BaseException | None]] = Future()
        self._ending = threading.Lock()
        self._ended = False
        work = functools.partial(contextvars.copy_context().run, function, *args)
        self.thread = threading.Thread(
            target=self._work, args=(work,), name=f"call-{_name(function)}", daemon=True
        )
        self.thread.start()

    def _work(self, work: Callable[[], Any]) -> None:
        try:
            result, raised = None, None
            try:
                result = work()
            except BaseException as error:
                raised = error
            with self._ending:
                self._ended = True
            if not isinstance(raised, _Abandoned):
                self.done.set_result((result, raised))
            raised = None  # it refers to this frame
        except _Abandoned:
            return  # it had just ended when it was given up

    def abandon(self) -> None:
        """Give it up. One that has ended meanwhile is left alone: its thread's id may be another's by now."""
        with _hung_lock:
            _hung.add(self.thread)
        with self._ending:
            if not self._ended:
                _raise_in(self.thread)


def _raise_in(thread: threading.Thread) -> None:
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Abandoned))


# ------------------------------------------------------------------------------------------------ coroutines


class _Loop:
    """An event loop on a thread of its own, which outlives whatever the coroutines on it raise."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_report)
        self._calls: set[Future[Any]] = set()
        self.thread = threading.Thread(target=self._serve, name="remand-event-loop", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        stopped = False
        while not stopped:
            try:
                self.loop.run_forever()
                stopped = True
            except BaseException as error:
                # A task of the author's own raised `SystemExit` or the like. It is that task's; the loop is everyone's.
                _report(self.loop, {"exception": error})
        self.loop.close()

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run `coroutine` here."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return future

    def end(self) -> None:
        """Stop once every call that was begun here has ended; those are bounded in time."""
        asyncio.run_coroutine_threadsafe(self._end(list(self._calls)), self.loop)

    async def _end(self, calls: list[Future[Any]]) -> None:
        await asyncio.gather(*map(asyncio.wrap_future, calls), return_exceptions=True)
        self.loop.stop()


_loops: dict[int, _Loop] = {}
_loops_lock = threading.Lock()


def _report(loop: asyncio.AbstractEventLoop, facts: dict[str, Any]) -> None:
    error = facts.get("exception")
    log.warning(
        "asynchronous code left an error behind: %s", "none" if error is None else type(error).__name__
    )


def _grace(timeout: float) -> float:
    """Seconds beyond `timeout` in which a loop that is not blocked ends a call by itself."""
    return max(0.2, min(1.0, timeout / 4))


def _await(awaitable: Awaitable[Any], function: Callable[..., Any], timeout: float) -> Any:
    tasks: list[asyncio.Task[Any]] = []

    async def guarded() -> tuple[Any, BaseException | None]:
        try:
            return await awaitable, None
        except BaseException as error:
            # Returned, because a task that raises `SystemExit` takes its loop with it.
            return None, error

    async def bounded() -> tuple[Any, BaseException | None]:
        task = asyncio.ensure_future(guarded())
        tasks.append(task)
        try:
            finished, _ = await asyncio.wait([task], timeout=timeout)
            if not finished:
                raise CallTimedOut(_where_it_waits(awaitable, function))
            return task.result()
        finally:
            task.cancel()

    with _loops_lock:
        home = _loops.get(os.getpid())
        if home is None:
            home = _Loop()
            _loops.clear()
            _loops[os.getpid()] = home
        future = home.begin(bounded())
    try:
        result, error = future.result(timeout + _grace(timeout))
    except CallTimedOut:
        raise
    except FutureTimeout:
        blocks = bool(tasks) and asyncio.current_task(home.loop) is tasks[0]
        place = _where_it_stands(home.thread, function) if blocks else None
        future.cancel()
        _give_up(home)
        if blocks:
            _raise_in(home.thread)
        elif inspect.iscoroutine(awaitable) and inspect.getcoroutinestate(awaitable) == inspect.CORO_CREATED:
            with suppress(ValueError):  # it may begin at this very moment
                awaitable.close()
        raise CallTimedOut(place) from None
    if error is not None:
        raise CalleeRaised(error)
    return result


def _give_up(home: _Loop) -> None:
    """Leave a loop that something blocks: later calls get a new one, and its thread counts as hung until it ends."""
    with _loops_lock:
        if _loops.get(os.getpid()) is not home:
            return
        _loops.clear()
        home.end()
    with _hung_lock:
        _hung.add(home.thread)


# ---------------------------------------------------------------------------------------------------- places


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))[:40]


def _module(function: Callable[..., Any]) -> str:
    inner = function.func if isinstance(function, functools.partial) else function
    return str(getattr(inner, "__module__", "") or "")


def _spot(frame: FrameType, line: int) -> str:
    return f"{frame.f_globals.get('__name__', '?')}:{frame.f_code.co_name}:{line}"


def _where_it_stands(thread: threading.Thread, function: Callable[..., Any]) -> str | None:
    frame = sys._current_frames().get(thread.ident or 0)
    module, fallback = _module(function), None
    while frame is not None:
        fallback = fallback or _spot(frame, frame.f_lineno)
        if frame.f_globals.get("__name__") == module:
            return _spot(frame, frame.f_lineno)
        frame = frame.f_back
    return fallback


def _where_it_waits(awaitable: Any, function: Callable[..., Any]) -> str | None:
    """The innermost place in the module of `function` where a coroutine awaits something."""
    module, place = _module(function), None
    while inspect.iscoroutine(awaitable) and awaitable.cr_frame is not None:
        frame = awaitable.cr_frame
        if frame.f_globals.get("__name__") == module:
            place = _spot(frame, frame.f_lineno)
        awaitable = awaitable.cr_await
    return place


def place_of(error: BaseException, code: Callable[..., Any] | str) -> ErrorPlace:
    """The type of `error` and where it arose: the innermost frame in the module of `code`, else the innermost.

    `code` is a function, or a module's name.
    """
    module, name = (code, "<module>") if isinstance(code, str) else (_module(code), _name(code))
    if isinstance(error, CallTimedOut):
        return ErrorPlace("TimeoutError", error.place or f"{module}:{name}:0")
    kind = re.sub(r"[^\w.]", "_", type(error).__name__)[:80]
    best, last = None, None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        last = _spot(trace.tb_frame, trace.tb_lineno)
        if trace.tb_frame.f_globals.get("__name__") == module:
            best = last
        trace = trace.tb_next
    return ErrorPlace(kind, best or last or f"{module}:{name}:0")
