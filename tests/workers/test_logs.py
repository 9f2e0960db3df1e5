"""Whatever is logged, and by whom: codes, types and places come out, and nobody's words do."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from celery.app.trace import LOG_FAILURE, LOG_SUCCESS
from celery.worker.consumer import consumer as celery_consumer

from remand_workers import logs
from remand_workers.settings import Settings

MARKER = "the patient's name is Zebra-4711"
LIBRARY = celery_consumer.__file__


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    """The stream that a configured process writes to; everything that `configure` changes is put back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in logs._TAMED}
    hooks = threading.excepthook, sys.unraisablehook, warnings.showwarning
    stream = io.StringIO()
    logs.configure(Settings(log_format="json", log_level="DEBUG"), stream)
    yield stream
    logs.clear()
    logging.captureWarnings(False)
    threading.excepthook, sys.unraisablehook, warnings.showwarning = hooks
    for name, was in levels.items():
        logging.getLogger(name).setLevel(was)
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def alone() -> None:
    """Take pytest's own handlers off for the rest of a test: they raise on records that cannot be formatted."""
    root = logging.getLogger()
    root.handlers[:] = [each for each in root.handlers if isinstance(each, logs._Handler)]


def records(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def only(out: io.StringIO) -> dict[str, Any]:
    assert "Zebra" not in out.getvalue()
    [record] = records(out)
    return record


def library_record(name: str, template: object, *args: object, **more: Any) -> None:
    """Log as a library installed in site-packages does."""
    logger = logging.getLogger(name)
    info = more.pop("exc_info", None)
    arguments: Any = args
    record = logger.makeRecord(name, logging.ERROR, LIBRARY, 7, template, arguments, info, extra=more or None)
    logger.handle(record)


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def test_an_exception_becomes_its_type_and_place(out: io.StringIO) -> None:
    error = raised(ValueError(MARKER))
    structlog.get_logger("remand_tasks.produce").error("attempt_failed", exc_info=error)
    record = only(out)
    assert record["event"] == "attempt_failed"
    assert record["error_type"] == "ValueError"
    assert record["error_at"].startswith(f"{__name__}:raised:")
    assert record["level"] == "error"
    assert record["logger"] == "remand_tasks.produce"
    assert record["timestamp"].endswith("Z")


def test_causes_and_groups_are_not_quoted(out: io.StringIO) -> None:
    error = raised(ExceptionGroup(MARKER, [KeyError(MARKER)]), raised(OSError(5, "the cause was Zebra-too")))
    logging.getLogger("my_pipeline").error("could not judge: %s", error, exc_info=error)
    logging.getLogger("my_pipeline").error(f"could not judge: {error.__cause__}", exc_info=error)
    assert "Zebra" not in out.getvalue()
    first, second = records(out)
    assert first["event"] == "could not judge: ExceptionGroup"
    assert second["error_type"] == "ExceptionGroup"


def test_text_made_from_the_exception_in_hand_is_cut(out: io.StringIO) -> None:
    try:
        raise ValueError(MARKER)
    except ValueError as error:
        logging.getLogger("my_pipeline").error(f"failed: {error}")
        logging.getLogger("my_pipeline").error(error)
        structlog.get_logger("remand_workers.x").error(f"failed: {error!r}", problem=error, more=[error])
    assert "Zebra" not in out.getvalue()
    assert [each["event"] for each in records(out)] == ["failed: …", "ValueError", "failed: …"]
    assert records(out)[2]["problem"] == "ValueError"
    assert records(out)[2]["more"] == ["ValueError"]


def test_the_place_is_in_user_code_even_if_a_library_raised(out: io.StringIO) -> None:
    def user_code() -> None:
        json.loads("{" + MARKER)

    try:
        user_code()
    except ValueError:
        structlog.get_logger("remand_workers.x").exception("failed")
    record = only(out)
    assert record["error_type"] == "JSONDecodeError"
    assert record["error_at"].startswith(f"{__name__}:user_code:")


def test_what_the_pipelines_own_code_says_is_shown(out: io.StringIO) -> None:
    logging.getLogger("my_pipeline").info("looked at %d records of %s", 3, "the first part")
    assert only(out)["event"] == "looked at 3 records of the first part"


def body_reports() -> list[tuple[str, tuple[object, ...]]]:
    body = repr(MARKER) + " (20b)"
    report = celery_consumer.MESSAGE_REPORT.format(body, "'text/plain'", "'utf-8'", "{}", {"note": MARKER})
    return [
        (celery_consumer.UNKNOWN_FORMAT, (report,)),
        (
            celery_consumer.UNKNOWN_TASK_ERROR,
            (KeyError("remand.gone"), body, {"argsrepr": MARKER}, {"x": MARKER}),
        ),
        (celery_consumer.INVALID_TASK_ERROR, (TypeError(MARKER), body)),
        (
            celery_consumer.MESSAGE_DECODE_ERROR,
            (ValueError(MARKER), "text/plain", "utf-8", f"{{'a': {MARKER}}}", body),
        ),
        ("Error in timer: %r", (ValueError(MARKER),)),
        ("Couldn't ack %r, reason:%r", (4, OSError(MARKER))),
        ("Request options: %s", ({"messages": [{"content": MARKER}]},)),
        ("took %d ms", (MARKER,)),
    ]


@pytest.mark.parametrize(("template", "args"), body_reports())
def test_libraries_message_bodies_never_show(
    out: io.StringIO, template: str, args: tuple[object, ...]
) -> None:
    alone()
    library_record("celery.worker.consumer.consumer", template, *args, data={"args": MARKER})
    record = only(out)
    assert record["event"].split()[0] == template.split()[0]
    assert "\n" not in record["event"]


def test_task_records_keep_names_and_lose_results(out: io.StringIO) -> None:
    context = {
        "id": "b6e1c8d2-0000-4000-8000-000000000001",
        "name": "remand.produce",
        "runtime": 0.25,
        "return_value": "Zebra-4711",
        "hostname": "w1@host",
        "description": "raised unexpected",
        "exc": f"ValueError({MARKER!r})",
        "traceback": MARKER,
        "args": f"({MARKER!r},)",
        "kwargs": "{}",
    }
    library_record("celery.app.trace", LOG_SUCCESS, context, data=context)
    library_record(
        "celery.app.trace",
        LOG_FAILURE,
        context,
        data=context,
        exc_info=(ValueError, ValueError(MARKER), None),
    )
    assert "Zebra" not in out.getvalue()
    success, failure = records(out)
    assert success["event"].startswith(
        "Task remand.produce[b6e1c8d2-0000-4000-8000-000000000001] succeeded in 0.25s"
    )
    assert failure["error_type"] == "ValueError"
    assert (
        failure["event"] == "Task remand.produce[b6e1c8d2-0000-4000-8000-000000000001] raised unexpected: …"
    )


def test_only_the_first_line_of_a_librarys_text_is_kept(out: io.StringIO) -> None:
    library_record(
        "asyncio", f"Task exception was never retrieved\nfuture: <Task exception=ValueError({MARKER!r})>"
    )
    assert only(out)["event"] == "Task exception was never retrieved"


def test_python_warnings_show_category_and_place(out: io.StringIO) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)  # Celery calls it again after its signal.
        warnings.warn(f"input_value={MARKER}", UserWarning, stacklevel=1)
    record = only(out)
    assert record["event"].startswith("python warning: UserWarning at ")
    assert "test_logs.py:" in record["event"]
    assert record["logger"] == "py.warnings"


def test_exceptions_that_end_a_thread_are_reported_by_type(
    out: io.StringIO, capfd: pytest.CaptureFixture[str]
) -> None:
    def work() -> None:
        raise ValueError(MARKER)

    thread = threading.Thread(target=work, name="pulse")
    thread.start()
    thread.join()
    record = only(out)
    assert (record["error_type"], record["thread"]) == ("ValueError", "pulse")
    assert "Zebra" not in "".join(capfd.readouterr())


def test_exceptions_in_finalizers_are_reported_by_type(
    out: io.StringIO, capfd: pytest.CaptureFixture[str]
) -> None:
    class Broken:
        def __del__(self) -> None:
            raise ValueError(MARKER)

    Broken()
    assert only(out)["error_type"] == "ValueError"
    assert "Zebra" not in "".join(capfd.readouterr())


def test_a_record_that_cannot_be_written_is_not_quoted(
    out: io.StringIO, capfd: pytest.CaptureFixture[str]
) -> None:
    alone()
    out.close()
    logging.getLogger("my_pipeline").info("saw %s", MARKER)
    said = "".join(capfd.readouterr())
    assert "a log record of my_pipeline could not be written: ValueError" in said
    assert "Zebra" not in said


def test_broken_arguments_do_not_disturb_the_caller(out: io.StringIO) -> None:
    class Broken:
        def __str__(self) -> str:
            raise ValueError(MARKER)

    alone()
    logging.getLogger("my_pipeline").info("saw %s", Broken())
    logging.getLogger("my_pipeline").info("saw %s and %s", "one")
    assert "Zebra" not in out.getvalue()
    assert [each["event"] for each in records(out)] == ["saw …", "saw … and …"]


def test_bound_places_are_in_every_record_until_cleared(out: io.StringIO) -> None:
    logs.bind(run="r1", item=7, stage="extract", attempt=2)
    structlog.get_logger("remand_tasks.x").info("claimed")
    logging.getLogger("my_pipeline").info("looking")
    logs.clear()
    structlog.get_logger("remand_tasks.x").info("idle")
    ours, foreign, after = records(out)
    for record in (ours, foreign):
        assert (record["run"], record["item"], record["stage"], record["attempt"]) == ("r1", 7, "extract", 2)
    assert "run" not in after


def test_noisy_libraries_stay_quiet_at_debug(out: io.StringIO) -> None:
    for name in ("openai._base_client", "httpx", "sqlalchemy.engine.Engine"):
        assert not logging.getLogger(name).isEnabledFor(logging.INFO)
        assert logging.getLogger(name).isEnabledFor(logging.WARNING)


def test_celery_installs_no_handlers_of_its_own(out: io.StringIO) -> None:
    from celery import Celery, signals
    from celery.app.log import Logging

    receiver: Callable[..., None] = logs.setup_logging_receiver(Settings(log_format="json"))
    signals.setup_logging.connect(receiver, weak=False)
    was, Logging._setup = Logging._setup, False
    try:
        Celery("x", set_as_current=False).log.setup("INFO")
        [handler] = logging.getLogger().handlers
        assert isinstance(handler, logs._Handler)
        assert not logging.getLogger("celery").handlers
    finally:
        signals.setup_logging.disconnect(receiver)
        Logging._setup = was


def test_on_a_terminal_lines_are_for_people(out: io.StringIO) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    logs.configure(Settings(log_format="auto"), terminal)
    structlog.get_logger("remand_workers.x").error("lost", exc_info=raised(ValueError(MARKER)), item=3)
    line = terminal.getvalue()
    assert "lost" in line
    assert "ValueError" in line
    assert not line.startswith("{")
    assert "Zebra" not in line
    assert "Traceback" not in line


def test_unknown_objects_are_named_not_shown(out: io.StringIO) -> None:
    class Reply:
        def __repr__(self) -> str:
            return MARKER

    structlog.get_logger("remand_workers.x").info("got", reply=Reply(), many=[Reply()], by={"key": Reply()})
    record = only(out)
    assert record["reply"] == "<Reply>"
    assert record["many"] == ["<Reply>"]
