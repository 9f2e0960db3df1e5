"""Servers started for the tests alone: in folders of their own, on this machine alone, gone with this process.

Each runs under a small watchdog that kills it once nobody holds the watchdog's standard input open, so that a test
process that is itself killed leaves nothing behind. `Missing` says which program cannot be had, and how to get it.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import redis

from remand_workers.embedded import EmbeddedError, server_command

# The last word is for its own process group: what the server started, and itself.
_WATCHDOG = '"$@" </dev/null & child=$!; read -r _; kill -9 "$child"; wait "$child"; kill -9 0'


class Missing(Exception):
    """A server program is not on this machine."""


def until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Wait until `condition` holds."""
    ends = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > ends:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.02)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Whether somebody listens on a port of this machine."""
    with socket.socket() as line:
        line.settimeout(1.0)
        return line.connect_ex(("127.0.0.1", port)) == 0


class Server:
    """One server process under its watchdog. `start` after `stop` begins it again on the same addresses."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        user: str | None = None,
        answers: Callable[[], object],
        patience: float = 60.0,
    ) -> None:
        self.name = name
        self._command = list(command)
        self._folder = folder
        self._environment = dict(environment or {})
        self._user = user
        self._answers = answers
        self._patience = patience
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        with open(self._folder / f"{self.name}.log", "ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHDOG, f"remand-chaos-{self.name}", *self._command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **self._environment},
                user=self._user,
                group=None if self._user is None else pwd.getpwnam(self._user).pw_gid,
                extra_groups=None if self._user is None else [],
                start_new_session=True,  # Its process group is its own: what it starts ends with it.
            )
        try:
            until(self._alive_and_answering, f"{self.name} answers", self._patience)
        except TimeoutError:
            self.stop()
            said = (self._folder / f"{self.name}.log").read_text(errors="replace")[-1500:]
            raise RuntimeError(f"{self.name} does not start:\n{said}") from None

    def _alive_and_answering(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            said = (self._folder / f"{self.name}.log").read_text(errors="replace")[-1500:]
            raise RuntimeError(f"{self.name} ended at once:\n{said}")
        return bool(self._answers())

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Its connections stay open, and nothing that it started answers."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Kill it and everything that it started."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process = None
        until(lambda: not self._answers(), f"{self.name} is gone", 20.0)


def _pings(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


class Valkey:
    """A Valkey on a Unix socket that keeps nothing."""

    def __init__(self, folder: Path) -> None:
        try:
            command = server_command()
        except EmbeddedError as error:
            raise Missing(str(error)) from None
        self.socket = folder / "valkey.sock"
        self.client = redis.Redis(unix_socket_path=str(self.socket))
        options = {
            "port": "0", "unixsocket": str(self.socket), "unixsocketperm": "700", "save": "", "appendonly": "no",
            "maxmemory-policy": "noeviction", "dir": str(folder),
        }  # fmt: skip
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self.server = Server("valkey", [command, *words], folder=folder, answers=lambda: _pings(self.client))

    @property
    def broker_url(self) -> str:
        """As kombu names it."""
        return f"redis+socket://{self.socket}"

    @property
    def vault_url(self) -> str:
        """As redis-py names it."""
        return f"unix://{self.socket}?db=0"


class Postgres:
    """A PostgreSQL cluster of its own, with an empty database; not as root, which PostgreSQL refuses."""

    def __init__(self, folder: Path) -> None:
        binaries = _postgres_binaries()
        self._data = folder / "data"
        user = _unprivileged("postgres")
        if user is not None:
            shutil.chown(folder, user)
        as_user = (
            {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
        )
        made = subprocess.run(
            [str(binaries / "initdb"), "-D", str(self._data), "-U", "remand", "-A", "trust", "-E", "UTF8",
             "--locale=C", "--no-sync"],
            capture_output=True, text=True, cwd=folder, check=False, **as_user,
        )  # fmt: skip
        if made.returncode != 0:
            raise RuntimeError(f"initdb failed: {made.stderr[-800:]}")
        self._ready = [
            str(binaries / "pg_isready"),
            "-q",
            "-h",
            str(folder),
            "-U",
            "remand",
            "-d",
            "postgres",
        ]
        self.url = f"postgresql+psycopg://remand@/postgres?host={folder}"
        self.server = Server(
            "postgres",
            [str(binaries / "postgres"), "-D", str(self._data), "-k", str(folder), "-c", "listen_addresses=",
             "-c", "max_connections=300"],
            folder=folder, user=user, answers=self._accepts,
        )  # fmt: skip

    def _accepts(self) -> bool:
        return subprocess.run(self._ready, capture_output=True, check=False).returncode == 0


def _postgres_binaries() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[4]))
    if found:
        return found[-1].parent
    if name := shutil.which("postgres"):
        return Path(name).resolve().parent
    raise Missing("PostgreSQL is not installed: `apt-get install postgresql`, or `.ci/services`")


def _unprivileged(preferred: str) -> str | None:
    if os.geteuid() != 0:
        return None
    for name in (preferred, "nobody"):
        with suppress(KeyError):
            pwd.getpwnam(name)
            return name
    raise Missing(f"there is no user {preferred!r} to run a server as")


class Rabbit:
    """A RabbitMQ node with a name, a cookie and a port mapper of its own; loopback only."""

    def __init__(self, folder: Path) -> None:
        program = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
        mapper = shutil.which("epmd")
        if not program.exists() or mapper is None:
            raise Missing("RabbitMQ is not installed: `apt-get install rabbitmq-server`, or `.ci/services`")
        self.port, names, distribution = free_port(), free_port(), free_port()
        cookie = folder / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        (folder / "rabbitmq.conf").write_text(
            "vm_memory_high_watermark.relative = 0.2\ndisk_free_limit.absolute = 50MB\n"
            # On a busy machine the default, 60 s, is soon over.
            "heartbeat = 300\n"
        )
        (folder / "plugins").write_text("[].\n")
        environment = {
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"remand-chaos-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none.conf"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none",
        }
        self.mapper = Server(
            "epmd", [mapper, "-port", str(names), "-address", "127.0.0.1"], folder=folder, environment=environment,
            answers=lambda: listens(names),
        )  # fmt: skip
        self.server = Server(
            "rabbitmq", [str(program)], folder=folder, environment=environment, answers=self._speaks,
            patience=180.0,
        )  # fmt: skip

    @property
    def url(self) -> str:
        """As kombu names it."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def _speaks(self) -> bool:
        from kombu.connection import Connection

        if not listens(self.port):
            return False
        try:
            with Connection(self.url, connect_timeout=10) as line:
                line.connect()
            return True
        except OSError:
            return False


def new_folder(name: str) -> Path:
    """A folder that the servers' own users may enter, short enough for a Unix socket's path."""
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{name}-", dir="/tmp"))
    folder.chmod(0o711)
    return folder
