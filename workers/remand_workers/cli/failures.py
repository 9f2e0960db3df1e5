"""What went wrong, in one clear message: what happened, where, and what to do. No traceback, no quoted data.

`REMAND_DEBUG=1` shows the traceback instead; it may quote inputs and replies, so it is for the author's own terminal.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Final

from remand.errors import PipelineError, RemandError

from .console import complain

SUCCEEDED: Final = 0
FAILED: Final = 1
MISUSED: Final = 2
DEGRADED: Final = 3
INTERRUPTED: Final = 130

DEBUG: Final = "REMAND_DEBUG"


class UsageError(RemandError):
    """The command line asks for something that cannot be. The text says what and what to do. Exit status 2."""


class CommandError(RemandError):
    """A command could not do its work. The text says what happened and what to do. Exit status 1."""


def guarded(command: Callable[[], object]) -> int:
    """Run a command and turn whatever it raises into a message and an exit status."""
    try:
        command()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else SUCCEEDED if end.code is None else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if os.environ.get(DEBUG) not in (None, "", "0"):
            raise
        message, status = explain(error)
        complain(message)
        return status
    return SUCCEEDED


def explain(error: BaseException) -> tuple[str, int]:
    """An exception as a message for people and an exit status."""
    from remand_tasks.registry.store import RegistryError
    from remand_tasks.state.submissions import RunError

    from ..settings import SettingsError

    if isinstance(error, PipelineError):
        return f"The pipeline was refused. {error}", MISUSED
    if isinstance(error, SettingsError):
        return f"A setting cannot be used.\n{error}", MISUSED
    if isinstance(error, UsageError | RunError | RegistryError):
        return _sentence(str(error)), MISUSED
    if isinstance(error, RemandError):
        return _sentence(str(error)), FAILED
    for told in (_of_server(error), _of_database(error), _of_system(error)):
        if told is not None:
            return told, FAILED
    from .. import logs

    return (
        f"Remand met an error that it does not know: {type(error).__name__} at {logs.place(error)}.\n"
        f"{DEBUG}=1 shows its traceback, which may quote your data.",
        FAILED,
    )


def _of_server(error: BaseException) -> str | None:
    import kombu.exceptions
    import redis.exceptions

    kind = type(error).__name__
    if isinstance(error, kombu.exceptions.OperationalError):
        return f"The broker cannot be reached ({kind}). Check REMAND_BROKER_URL, and that the server runs."
    if isinstance(error, redis.exceptions.AuthenticationError):
        return (
            "The Redis server refuses the password or user. Check REMAND_VAULT_URL, "
            "or REMAND_BROKER_URL where the vault is the broker's."
        )
    if isinstance(error, redis.exceptions.ConnectionError | redis.exceptions.TimeoutError):
        return (
            f"The Redis server of the vault cannot be reached ({kind}). Check REMAND_VAULT_URL, or REMAND_BROKER_URL "
            "where the vault is the broker's, and that the server runs."
        )
    if isinstance(error, redis.exceptions.RedisError):
        return (
            f"The Redis server of the vault refused a command ({kind}). Check the rights of the user in "
            "REMAND_VAULT_URL and the server's memory; `remand doctor` says more."
        )
    return None


def _of_database(error: BaseException) -> str | None:
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    if not isinstance(error, SQLAlchemyError):
        return None
    cause = error.orig if isinstance(error, DBAPIError) else None
    kind = type(cause if cause is not None else error).__name__
    known = {
        "SQLITE_FULL": "the disk is full",
        "SQLITE_READONLY": "its file or folder may not be written",
        "SQLITE_CANTOPEN": "its file cannot be opened",
        "SQLITE_CORRUPT": "its file is damaged",
        "SQLITE_NOTADB": "its file is no database",
        "SQLITE_BUSY": "another program holds it locked",
        "SQLITE_IOERR": "reading or writing its file failed",
    }
    name = str(getattr(cause, "sqlite_errorname", ""))
    why = next((words for code, words in known.items() if name.startswith(code)), kind)
    return f"The ledger cannot be used: {why}. Check REMAND_LEDGER_URL, or REMAND_HOME where the ledger is embedded."


def _of_system(error: BaseException) -> str | None:
    if not isinstance(error, OSError):
        return None
    named = f" {os.fspath(error.filename)!r}" if isinstance(error.filename, str | os.PathLike) else ""
    words = {
        errno.ENOENT: f"There is no file or folder{named}.",
        errno.EACCES: f"You may not read or write{named or ' a file'}. Check its rights, or name another place.",
        errno.EPERM: f"You may not do that to{named or ' a file'}. Check its rights, or name another place.",
        errno.EROFS: f"The disk of{named or ' a file'} cannot be written. Name another place.",
        errno.ENOSPC: f"The disk is full, writing{named or ' a file'}. Make room and go on with `remand resume`.",
        errno.EDQUOT: f"Your share of the disk is full, writing{named or ' a file'}.",
        errno.EISDIR: f"A file is wanted, and{named} is a folder.",
        errno.ENOTDIR: f"A folder is wanted on the way to{named}, and a file is there.",
        errno.EADDRINUSE: "The address or port is taken by another program. Choose another port.",
        errno.EMFILE: "This process may open no more files. Raise `ulimit -n`.",
    }
    return words.get(
        error.errno or 0,
        f"The system refused something{' about' + named if named else ''} ({type(error).__name__}, "
        f"{errno.errorcode.get(error.errno or 0, 'no code')}).",
    )


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "`", "\n")) else text + "."


def exit_now(status: int) -> None:
    """End the command with this status."""
    sys.exit(status)
