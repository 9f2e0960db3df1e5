"""Calls of authors' code with a deadline that holds on any thread, and where in their code an error arose.

A plain function runs in a thread of its own and is abandoned when its time is up: Python cannot end a thread, so an
exception is raised inside it, which ends it unless it is stuck in a call that never returns to Python. Such threads
are counted (`hung_calls`), so that a worker can replace its process before they pile up. A coroutine runs on
one event loop a process and is cancelled.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import functools
import inspect
import os
import re
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any


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
_loops: dict[int, asyncio.AbstractEventLoop] = {}
_loops_lock = threading.Lock()


def hung_calls() -> int:
    """How many abandoned calls still hold a thread in this process."""
    with _hung_lock:
        _hung.difference_update([thread for thread in _hung if not thread.is_alive()])
        return len(_hung)


def call(function: Callable[..., Any], *args: Any, timeout: float) -> Any:
    """`function(*args)`, awaited if it is a coroutine.

    Raises `CalleeRaised` around whatever it raised, and `CallTimedOut` after `timeout` seconds.
    """
    if inspect.iscoroutinefunction(function):
        return _await(function(*args), timeout)
    done: Future[tuple[Any, BaseException | None]] = Future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            result = context.run(function, *args)
        except _Abandoned:
            return
        except BaseException as error:
            done.set_result((None, error))
        else:
            done.set_result((result, None))

    thread = threading.Thread(target=work, name=f"call-{_name(function)}", daemon=True)
    thread.start()
    try:
        result, error = done.result(timeout)
    except FutureTimeout:
        place = _where_it_stands(thread, function)
        _abandon(thread)
        raise CallTimedOut(place) from None
    if error is not None:
        raise CalleeRaised(error)
    return _await(result, timeout) if inspect.isawaitable(result) else result


def _await(awaitable: Awaitable[Any], timeout: float) -> Any:
    async def bounded() -> tuple[Any, BaseException | None]:
        task = asyncio.ensure_future(awaitable)
        finished, _ = await asyncio.wait([task], timeout=timeout)
        if not finished:
            task.cancel()
            raise CallTimedOut
        try:
            return task.result(), None
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            return None, error

    future = asyncio.run_coroutine_threadsafe(bounded(), _loop())
    try:
        # A coroutine that awaits is ended by the inner time-out, one that blocks the loop is left by the outer.
        result, error = future.result(timeout + 1.0)
    except FutureTimeout as late:
        future.cancel()
        raise (late if isinstance(late, CallTimedOut) else CallTimedOut()) from None
    if error is not None:
        raise CalleeRaised(error)
    return result


def _loop() -> asyncio.AbstractEventLoop:
    pid = os.getpid()
    with _loops_lock:
        loop = _loops.get(pid)
        if loop is None:
            loop = asyncio.new_event_loop()
            _loops.clear()
            _loops[pid] = loop
            threading.Thread(target=loop.run_forever, name="remand-event-loop", daemon=True).start()
        return loop


def _abandon(thread: threading.Thread) -> None:
    with _hung_lock:
        _hung.add(thread)
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Abandoned))


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


def place_of(error: BaseException, function: Callable[..., Any]) -> ErrorPlace:
    """The type of `error` and where it arose: the innermost frame in the module of `function`, else the innermost."""
    kind = re.sub(r"[^\w.]", "_", type(error).__name__)[:80]
    if isinstance(error, CallTimedOut):
        return ErrorPlace("TimeoutError", error.place or f"{_module(function)}:{_name(function)}:0")
    module, best, last = _module(function), None, None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        last = _spot(trace.tb_frame, trace.tb_lineno)
        if trace.tb_frame.f_globals.get("__name__") == module:
            best = last
        trace = trace.tb_next
    return ErrorPlace(kind, best or last or f"{module}:{_name(function)}:0")
