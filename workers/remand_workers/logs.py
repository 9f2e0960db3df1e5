"""Logs: one line a record, for people on a terminal and JSON elsewhere, without a word of anybody's data.

Every record of the process goes through one chain, our own and other libraries' alike. An exception becomes its type
and its place in the code; its message, its traceback and its locals are dropped, for they quote prompts and replies.
What a library formats into its records is dropped unless it is a number or looks like a name, because libraries log
message bodies and request contents. Only what the pipeline's own code writes with `logging` is shown as written.

This module refuses to be told otherwise: there is no setting, and no level, that shows more.
"""

from __future__ import annotations

import copy
import logging
import re
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, TextIO
from uuid import UUID

import structlog
from structlog.typing import EventDict, Processor

from .settings import Settings

GONE = "…"
"""What stands where a value was left out."""

_OURS = frozenset({"remand", "remand_policy", "remand_tasks", "remand_workers"})
_NAME = re.compile(r"[\w.@:/+\-?=&%#*\[\]]{1,200}")
_WARNING = re.compile(r"(.*?):(\d+): (\w+): ", re.DOTALL)
# Mapping arguments of Celery's records about tasks: a result, an exception's text, the arguments.
_CONTENT_KEYS = frozenset({"exc", "traceback", "return_value", "args", "kwargs", "data", "body", "headers"})
# What Celery may say of a task that failed, in place of `description`.
_CELERY_WORDS = ("raised expected", "raised unexpected", "INTERNAL ERROR", "ignored", "rejected")
_LIBRARY_FOLDERS = tuple(
    {
        spelled
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        for spelled in (sysconfig.get_path(name), str(Path(sysconfig.get_path(name)).resolve()))
    }
)
# Fields that the chain itself sets: an exception's words are not looked for in them.
_FIXED = frozenset(
    {"error_type", "error_at", "level", "logger", "timestamp", "run", "item", "stage", "attempt"}
)

# Libraries whose lower levels say much and help little, or quote requests; each with its least level.
_TAMED = {
    "aiohttp": logging.WARNING,
    "alembic": logging.WARNING,
    "amqp": logging.WARNING,
    "asyncio": logging.WARNING,
    "celery.bootsteps": logging.INFO,
    "celery.utils.functional": logging.INFO,
    "httpcore": logging.WARNING,
    "httpcore2": logging.WARNING,
    "httpx": logging.WARNING,
    "httpx2": logging.WARNING,
    "kombu": logging.INFO,
    "openai": logging.WARNING,
    "redis": logging.WARNING,
    "sqlalchemy": logging.WARNING,
    "tornado.access": logging.WARNING,
    "urllib3": logging.WARNING,
}


class _Handler(logging.StreamHandler[TextIO]):
    """Writes redacted copies of records, so that other handlers keep theirs.

    A record that cannot be written is reported without its content: the standard report quotes the arguments.
    """

    def format(self, record: logging.LogRecord) -> str:
        return super().format(_redacted(record))

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exception()
        kind = "unknown" if error is None else _type_name(error)
        print(f"a log record of {record.name} could not be written: {kind}", file=sys.__stderr__)


def configure(settings: Settings, stream: TextIO | None = None) -> None:
    """Send every record of this process through the one chain, to `stream` (standard error by default).

    Call it once a process, and again in a child that was forked; a second call replaces the first. It also takes
    over Python warnings and what is reported of exceptions that nobody caught in threads and finalizers.
    """
    out = sys.stderr if stream is None else stream
    console = settings.log_format == "console" or (settings.log_format == "auto" and out.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if console else "iso", utc=not console),
        without_exceptions,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        # A forked child configures again; a logger bound before must follow.
        cache_logger_on_first_use=False,
    )
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=_no_traceback)
        if console
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    handler = _Handler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(settings.log_level)
    # Celery gives some of its loggers handlers of their own, which would bypass the chain.
    for name in ("celery", "celery.task", "celery.redirected", "multiprocessing", "billiard"):
        logger = logging.getLogger(name)
        for old in logger.handlers[:]:
            logger.removeHandler(old)
        logger.propagate = True
    for name, least in _TAMED.items():
        logging.getLogger(name).setLevel(max(least, logging.getLevelName(settings.log_level)))
    logging.captureWarnings(True)
    threading.excepthook = _thread_failed
    sys.unraisablehook = _unraisable


def setup_logging_receiver(settings: Settings) -> Callable[..., None]:
    """For Celery's `setup_logging` signal: connected, it keeps Celery from installing handlers of its own.

    Connect it with `weak=False`, or it is forgotten at once; connect the same one to `worker_process_init`.
    """

    def receive(**_: object) -> None:
        configure(settings)

    return receive


def bind(
    *,
    run: str | None = None,
    item: int | None = None,
    stage: str | None = None,
    attempt: int | None = None,
) -> None:
    """Add where we are to every record from here on, in this thread or asyncio task; `None` leaves a field as it is."""
    given = {"run": run, "item": item, "stage": stage, "attempt": attempt}
    structlog.contextvars.bind_contextvars(
        **{name: value for name, value in given.items() if value is not None}
    )


def clear() -> None:
    """Forget what `bind` added. Threads are used again: call it when a task has ended."""
    structlog.contextvars.clear_contextvars()


def place(error: BaseException) -> str:
    """Where it was raised, as `module:function:line`: the innermost frame of the user's code, else the innermost."""
    best = last = "unknown"
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        module = str(trace.tb_frame.f_globals.get("__name__", "?"))
        last = f"{module}:{code.co_name}:{trace.tb_lineno}"
        if module.partition(".")[0] not in _OURS and not _is_library(code.co_filename):
            best = last
        trace = trace.tb_next
    return last if best == "unknown" else best


def without_exceptions(_: Any, __: str, event: EventDict) -> EventDict:
    """A structlog processor: every exception in the event becomes its type; one in `exc_info` its place, too.

    Its words are also cut out of texts that quote it: `log.error(f"failed: {error}")`.
    """
    error = _error_of(event.pop("exc_info", None))
    for name in ("exception", "stack_info", "stack"):
        event.pop(name, None)
    quoted = [error] if error else []
    for name, value in list(event.items()):
        if isinstance(value, BaseException):
            quoted.append(value)
        if not name.startswith("_"):  # structlog's own, gone before rendering
            event[name] = _simple(value)
    if error is not None:
        event["error_type"] = _type_name(error)
        event["error_at"] = place(error)
    # An exception that is being handled is likely what a text was made from, even if it was not handed over.
    if (handled := sys.exception()) is not None:
        quoted.append(handled)
    words = sorted({word for each in quoted for word in _words(each)}, key=len, reverse=True)
    for name, value in list(event.items()):
        if isinstance(value, str) and name not in _FIXED:
            for word in words:
                value = value.replace(word, GONE)
            event[name] = value
    return event


def _redacted(record: logging.LogRecord) -> logging.LogRecord:
    """The record as it may be shown; one from structlog has been through the chain already."""
    if hasattr(record, "_logger"):
        return record
    record = copy.copy(record)
    if record.name == "py.warnings":
        record.msg = _warning(record)
    else:
        library = record.name.partition(".")[0] not in _OURS and _is_library(record.pathname)
        record.msg = _formatted(record, library)
    record.args = record.stack_info = record.exc_text = None
    return record


def _formatted(record: logging.LogRecord, library: bool) -> str:
    template, arguments = record.msg, record.args
    if isinstance(template, BaseException):
        return _type_name(template)
    text = _text_of(template) if not library or isinstance(template, str) else f"<{type(template).__name__}>"
    if arguments:
        shown: Any
        if isinstance(arguments, Mapping):
            shown = {name: _shown(value, library, str(name)) for name, value in arguments.items()}
        else:
            shown = tuple(_shown(value, library) for value in arguments)
        try:
            text = text % shown
        except (
            Exception
        ):  # A numeric field for a value that was left out; a wrong template; a broken __str__.
            text = re.sub(r"%(\([^)]*\))?[-#0 +]*[\d.*]*[a-zA-Z]", GONE, text)
    # Libraries put what they quote, and asyncio the exception, on the lines after the first.
    return text.strip().partition("\n")[0] if library else text


def _simple(value: object) -> object:
    """A value as it may be shown: exceptions and unknown objects by their type."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, BaseException):
        return _type_name(value)
    if isinstance(value, Mapping):
        return {str(key): _simple(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_simple(each) for each in value]
    if isinstance(value, Path | UUID | date | datetime | timedelta):
        return str(value)
    return f"<{type(value).__name__}>"


class _Bare(str):
    """Text that `%r` shows without quotes, as `%s` does."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _shown(value: object, library: bool, name: str = "") -> object:
    if isinstance(value, BaseException):
        return _Bare(_type_name(value))
    if isinstance(value, type) and issubclass(value, BaseException):
        return _Bare(value.__name__)
    if not library:
        return value
    if name in _CONTENT_KEYS:
        return _Bare(GONE)
    if value is None or isinstance(value, bool | int | float):
        return value
    if name == "description" and value in _CELERY_WORDS:
        return _Bare(value)
    if isinstance(value, str) and _NAME.fullmatch(value):
        return _Bare(value)
    return _Bare(GONE)


def _warning(record: logging.LogRecord) -> str:
    """A warning's category and place; its text may quote a value (pydantic's does), and a line of code follows."""
    text = str(record.args[0] if isinstance(record.args, tuple) and record.args else record.msg)
    found = _WARNING.match(text)
    return f"python warning: {found[3]} at {found[1]}:{found[2]}" if found else "python warning"


def _error_of(info: object) -> BaseException | None:
    if isinstance(info, BaseException):
        return info
    if isinstance(info, tuple):
        return info[1] if len(info) > 1 and isinstance(info[1], BaseException) else None
    return sys.exception() if info else None


def _family(error: BaseException, seen: set[int] | None = None) -> Iterator[BaseException]:
    """The error, its causes and contexts, and the members of groups."""
    seen = set() if seen is None else seen
    if id(error) in seen:
        return
    seen.add(id(error))
    yield error
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for each in (error.__cause__, error.__context__, *members):
        if each is not None:
            yield from _family(each, seen)


def _words(error: BaseException) -> Iterator[str]:
    """The texts by which an exception may have been quoted; very short ones would blot out ordinary words."""
    for each in _family(error):
        for argument in (*each.args, each):
            if isinstance(argument, str | BaseException):
                texts = (_text_of(argument), _text_of(argument, repr))
                yield from (text for text in texts if len(text) > 3)


def _text_of(value: object, how: Callable[[object], str] = str) -> str:
    try:
        return how(value)
    except Exception:  # What cannot be spelled cannot be quoted either.
        return GONE


def _type_name(error: BaseException) -> str:
    return re.sub(r"[^\w.]", "_", type(error).__name__)[:80]


def _is_library(path: str) -> bool:
    return path.startswith(("<frozen", *_LIBRARY_FOLDERS)) or "site-packages" in path


def _no_traceback(*_: object) -> None:
    """For the console renderer, should an `exc_info` ever reach it."""


def _thread_failed(arguments: threading.ExceptHookArgs) -> None:
    error = arguments.exc_value
    if error is None or isinstance(error, SystemExit):
        return
    name = arguments.thread.name if arguments.thread else "unknown"
    _report("a thread ended with an exception", error, thread=name)


def _unraisable(arguments: Any) -> None:
    if isinstance(arguments.exc_value, BaseException):
        _report("an exception was ignored in a finalizer", arguments.exc_value)


def _report(event: str, error: BaseException, **fields: str) -> None:
    structlog.get_logger("remand_workers.logs").error(event, exc_info=error, **fields)
