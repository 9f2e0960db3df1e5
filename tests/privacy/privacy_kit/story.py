"""Makes everything happen to real runs on real processes, watches, and writes down what every surface held.

What it leaves is a folder of evidence: one file or folder for each surface, read by `readers.py`. Services are the
product's embedded ones; workers (one that coordinates, two that produce and judge, one of `remand run` that does all;
an item kills one of them), Flower, users' programs and commands are processes of their own.
"""

from __future__ import annotations

import base64
import json
import os
import pty
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import redis
from celery.result import AsyncResult
from sqlalchemy import MetaData, select

from remand_tasks.routing import ALONE, COORDINATE, PRODUCE, RECONCILE, VALIDATE
from remand_tasks.state.vault import KeyRing
from remand_workers.app import create_app
from remand_workers.client import Client
from remand_workers.embedded import Embedded
from remand_workers.settings import Settings

from .model import Model
from .pipeline import ITEMS, inputs
from .texts import CONTROL
from .watch import Events, Keys, Traffic, Watcher, contents, processes
from .works import NAME, STREAM, messages

FOLDER = Path(__file__).resolve().parent.parent
PATIENCE = 90.0
AUTH = "anna:a-good-password"
RUN = f"main-{CONTROL}"
PACE = {
    "REMAND_PULSE_INTERVAL": "0.1",
    "REMAND_CLAIM_LEASE": "3",
    "REMAND_CLAIM_RENEWAL": "0.8",
    "REMAND_DISPATCH_LEASE": "3",
    "REMAND_MAX_RECOVERIES": "1",
    "REMAND_CONCURRENCY": "24",
    "REMAND_LOG_FORMAT": "json",
    "REMAND_LOG_LEVEL": "DEBUG",
    "REMAND_METRICS_PORT": "0",
    "REMAND_FLOWER_AUTH": AUTH,
    "REMAND_FLOWER_PORT": "0",
    "REMAND_INTAKE_RETENTION": "3600",
    "REMAND_MODEL": "scripted",
    "REMAND_MODEL_API_KEY": "none",
}


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until `condition` holds."""
    ends = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > ends:
            raise AssertionError(f"{what} within {PATIENCE:g} s")
        time.sleep(0.05)


class Story:
    """One telling. `tell` writes all evidence into `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work, self.temp, self.data = (folder / name for name in ("work", "temp", "data"))
        for each in (self.work, self.temp, self.data, folder / "notes", folder / "notes-local"):
            each.mkdir(parents=True)
        self._environment: dict[str, str] = {}
        self._local_environment: dict[str, str] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._seen: set[bytes] = set()

    def tell(self) -> None:
        """From the start to an orderly end."""
        with ExitStack() as stack:
            model, for_local = Model(), Model()
            for each in (model, for_local):
                stack.enter_context(each.server)
            embedded = Embedded(Settings(_env_file=None, home=self.folder / "home"))
            stack.enter_context(embedded)
            settings = embedded.settings
            kept = {
                name: value for name, value in os.environ.items() if not name.startswith(("REMAND_", "OTEL_"))
            }
            self._environment = {
                **{name: value for name, value in kept.items() if not name.lower().endswith("_proxy")},
                **settings.environment(),
                **PACE,
                "REMAND_MODEL_BASE_URL": model.server.base_url,
                "PRIVACY_NOTES": str(self.folder / "notes" / "planted.tsv"),
                "PYTHONPATH": os.pathsep.join(
                    filter(None, [*os.environ.get("PRIVACY_FIRST", "").split(os.pathsep), str(FOLDER)])
                ),
                "TMPDIR": str(self.temp),
                "HOME": str(self.work),
                "PYTHONWARNINGS": "always",
                "PYTHONDONTWRITEBYTECODE": "1",
            }
            stack.callback(self._end_all)
            self._local_environment = {
                **self._environment,
                "REMAND_MODEL_BASE_URL": for_local.server.base_url,
                "PRIVACY_NOTES": str(self.folder / "notes-local" / "planted.tsv"),
            }
            self._watched(settings, model, stack)

    # -------------------------------------------------------------------------------------------- processes

    def _start(self, name: str, *arguments: str, **streams: Any) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{name}.out", "wb") as out, open(self.folder / f"{name}.err", "wb") as err:
            given = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err, **streams}
            environment = self._local_environment if name == "local" else self._environment
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments], cwd=self.work, env=environment, **given
            )
        self._processes[name] = process
        return process

    def _finish(self, name: str, *allowed: int) -> None:
        status = self._processes[name].wait(PATIENCE)
        said = (self.folder / f"{name}.err").read_text("utf-8", "replace")[-3_000:]
        assert status in (allowed or (0,)), f"{name} ended with {status}: {said}"

    def _end_all(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self._processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)

    def _text(self, name: str) -> str:
        return (self.folder / name).read_text("utf-8", "replace")

    # ------------------------------------------------------------------------------------------------- story

    def _watched(self, settings: Settings, model: Model, stack: ExitStack) -> None:
        assert settings.vault_url is not None
        assert settings.vault_keys is not None
        assert settings.broker_url is not None
        path = settings.broker_url.removeprefix("redis+socket://")
        broker = redis.Redis.from_url(f"unix://{path}?db=0")
        vault = redis.Redis.from_url(settings.vault_url)
        for client in (broker, vault):
            stack.callback(client.close)
        broker.config_set("slowlog-log-slower-than", 0)
        broker.config_set("slowlog-max-len", 1_000_000)
        traffic = Traffic(path, self.folder / "traffic")
        traffic.start()
        keys = Keys((broker, vault), KeyRing.parse(settings.vault_keys.get_secret_value()))
        watchers = [Watcher(keys.look, every=0.15), Watcher(self._look_at_processes, every=0.3)]
        with Client(settings):
            pass  # makes the ledger, which otherwise every process would want to do first
        app = create_app(settings)
        events = Events(create_app(settings))  # its own, for an app is not made for two threads
        for each in (*watchers, events):
            each.start()
            stack.callback(each.stop)
        self._begin()
        until(
            lambda: app.control.enable_events(reply=True, timeout=1) and len(events.workers) >= 3, "workers"
        )
        self._foreign_messages(stack)
        self._main_run(app)
        self._finish("client")
        self._finish("local")
        self._commands(app)
        app.send_task("remand.produce", args=[f"{CONTROL}/0/0/1/1"], task_id=f"id-{CONTROL}", queue=PRODUCE)
        until(lambda: f"id-{CONTROL}" in events.tasks, "the last event")
        until(lambda: not keys.left(), "an empty vault")
        self._dashboard(events.tasks)
        self._metrics()
        self._introspection(broker)
        for each in (*watchers, events):
            each.stop()  # a second time does nothing
        self._write("control", self._text("control-during") + self._text("control-after"))
        self._write("events", "\n".join(json.dumps(each, default=repr) for each in events.seen))
        self._results(app, events.tasks, broker)
        self._end_all()
        traffic.stop()
        (self.folder / "keys").write_bytes(b"\n".join(sorted(keys.others)))
        (self.folder / "vault").write_bytes(b"\n".join(sorted(keys.vault)))
        (self.folder / "processes").write_bytes(b"\n".join(sorted(self._seen)))
        (self.folder / "requests").write_bytes(model.requests())
        self._write("left", repr(keys.left()))
        self._write(
            "facts.json",
            json.dumps(
                {
                    "opened": sorted(keys.opened),
                    "immortal": [repr(key) for key in sorted(keys.immortal)],
                    "longest": keys.longest,
                    "model_errors": [repr(error) for error in model.server.errors],
                }
            ),
        )
        self._tables(settings)
        app.close()

    def _begin(self) -> None:
        for name, queues in (
            ("pulse", [COORDINATE, RECONCILE]),
            ("worker-1", [PRODUCE, VALIDATE, ALONE]),
            ("worker-2", [PRODUCE, VALIDATE, ALONE]),
        ):
            self._start(name, "privacy_kit.worker", str(self.folder / f"spans-{name}"), *queues)
        self._start("flower", "privacy_kit.dashboard", str(self.folder / "flower.db"))
        for name in ("client", "local"):
            names = [str(self.folder / f"{name}.{kind}") for kind in ("log", "errors", "values")]
            self._start(name, "privacy_kit.program", name, *names)

    def _foreign_messages(self, stack: ExitStack) -> None:
        """Another system's messages wait on its own server; then `remand intake` takes them."""
        embedded = Embedded(Settings(_env_file=None, home=self.folder / "foreign-home"))
        stack.enter_context(embedded)
        assert embedded.settings.broker_url is not None
        path = embedded.settings.broker_url.removeprefix("redis+socket://")
        foreign = redis.Redis.from_url(f"unix://{path}?db=0")
        stack.callback(foreign.close)
        for message in messages():
            foreign.xadd(STREAM, {"json": message})
        foreign.xadd(STREAM, {"text": messages()[0], "more": messages()[1]})
        seen = [part for key in foreign.scan_iter() for part in (key, *contents(foreign, key))]
        (self.folder / "foreign").write_bytes(b"\n".join(seen))
        self._environment["REMAND_INTAKE_URL"] = f"redis+socket://{path}"
        self._start(
            "intake",
            "remand_workers.cli",
            "intake",
            "--stream",
            STREAM,
            "--registry",
            "privacy_kit.works:works",
        )
        until(lambda: not foreign.xlen(STREAM), "an empty stream")

    def _main_run(self, app: Any) -> None:
        """`remand run` on a terminal, with one worker more than there are; workers are asked all the while."""
        lines = [json.dumps(each) for each in inputs()]
        bad = [
            lines[0][:-3],
            '"' + json.loads(lines[0])["text"],
            json.dumps({"text": json.loads(lines[0])["text"]}),
        ]
        (self.data / "in.jsonl").write_text("\n".join([*lines, *bad]) + "\n")
        ours, theirs = pty.openpty()
        self._start(
            "run", "remand_workers.cli", "run", "privacy_kit.pipeline:pipeline", "--workers", "1", "--run-id", RUN,
            "--key", "do", "--input", str(self.data / "in.jsonl"), "--output", str(self.data / "out.jsonl"),
            stderr=theirs,
        )  # fmt: skip
        os.close(theirs)
        shown = bytearray()

        def read() -> None:
            with suppress(OSError):  # Linux says so when the other end is closed.
                while block := os.read(ours, 1 << 16):
                    shown.extend(block)

        reading = threading.Thread(target=read, daemon=True)
        reading.start()
        asked = []
        ends = time.monotonic() + PATIENCE
        while self._processes["run"].poll() is None:
            assert time.monotonic() < ends, shown.decode("utf-8", "replace")[-3_000:]
            inspect = app.control.inspect(timeout=0.3)
            asked.append([inspect.active(), inspect.reserved()])
        reading.join(10)
        os.close(ours)
        self._write("control-during", json.dumps(asked, default=repr))
        (self.folder / "progress").write_bytes(bytes(shown))
        assert self._processes["run"].returncode == 3, shown.decode()[-3_000:]

    def _look_at_processes(self) -> None:
        self._seen.add(processes(process.pid for process in self._processes.values()))

    def _commands(self, app: Any) -> None:
        shown = [
            ["status"], ["status", "--json"], ["status", RUN], ["status", RUN, "--json"], ["status", "--watch", RUN],
            ["quarantine", RUN], ["quarantine", RUN, "--json"], ["config"], ["config", "--json"],
            ["doctor", "privacy_kit.pipeline:pipeline"], ["cancel", RUN], ["show", RUN, "no such item"],
            ["intake", "dead"], ["intake", "dead", "--json"], ["intake", "retry", "--all"], ["intake", "drop", "99"],
            ["intake", "drop", "--all"], ["intake", "dead", "--settled"],
            *(["show", RUN, do, *["--json"] * (number % 2)] for number, do in enumerate(ITEMS)),
            *(
                ["registry", *words, *json]
                for words in (["list"], *([each, NAME] for each in ("show", "entries", "review", "history")))
                for json in ([], ["--json"])
            ),
            ["registry", "import", NAME, "--input", str(self.data / "in.jsonl")], ["registry", "reconcile", NAME],
            ["registry", "unmerge", NAME, "1"], ["registry", "accept", NAME, "1"], ["registry", "show", "none such"],
        ]  # fmt: skip
        with_data = [["show", RUN, do, "--payload"] for do in ("good", "module_guided", "module_falls_back")]
        with_data += [["registry", "entries", NAME, "--records"], ["registry", "export", NAME]]
        for name, commands in (("cli", shown), ("payload", with_data), ("results", [["results", RUN]])):
            process = self._start(name, "privacy_kit.commands", stdin=subprocess.PIPE)
            assert process.stdin is not None
            with process.stdin as stdin:
                stdin.write(json.dumps(commands).encode())
        self._inspect(app)
        for name in ("cli", "payload", "results"):
            self._finish(name)

    # ---------------------------------------------------------------------------------------------- captures

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, "utf-8")

    def _inspect(self, app: Any) -> None:
        inspect = app.control.inspect(timeout=1)
        asked = {
            name: getattr(inspect, name)()
            for name in ("active", "reserved", "scheduled", "revoked", "stats", "registered", "active_queues",
                         "conf", "report", "clock")
        }  # fmt: skip
        self._write("control-after", json.dumps(asked, default=repr))

    def _results(self, app: Any, tasks: list[str], broker: redis.Redis) -> None:
        lines = [f"backend {app.backend!r}"]
        for task in tasks:
            result = AsyncResult(task, app=app)
            for name in ("state", "result", "traceback", "info"):
                try:
                    lines.append(f"{result!r} {name} {getattr(result, name)!r}")
                except Exception as error:
                    lines.append(f"{result!r} {name} {type(error).__name__}: {error}")
        for key in broker.scan_iter("celery-task-meta-*"):
            lines.append(f"{key!r} {broker.get(key)!r}")
        self._write("results", "\n".join(lines))

    def _dashboard(self, tasks: list[str]) -> None:
        port = int(self._text("flower.out").split()[0])
        workers = list(json.loads(_fetch(port, "/api/workers?refresh=1")))
        assert workers
        query = {"draw": 1, "start": 0, "length": 5_000, "search[value]": "", "order[0][column]": 0,
                 "order[0][dir]": "asc", "columns[0][data]": "name"}  # fmt: skip
        table = "/tasks/datatable?" + urllib.parse.urlencode(query)
        failed = json.loads(_fetch(port, "/api/tasks?limit=5000&state=FAILURE"))
        assert failed, "no task failed, so nothing of a failure could be seen"
        some = [*list(failed)[:10], *tasks[:: max(len(tasks) // 25, 1)]]
        pages = ["/", "/workers", "/tasks", "/broker", table, *(f"/task/{each}" for each in some)]
        pages += [f"/worker/{urllib.parse.quote(each)}" for each in workers]
        api = [
            "/api/tasks?limit=5000",
            "/api/workers?refresh=1",
            "/api/task/types",
            "/api/queues/length",
            "/metrics",
            "/healthcheck",
            *(f"/api/task/{what}/{each}" for each in some[:15] for what in ("info", "result")),
        ]
        for name, paths in (("flower-pages", pages), ("flower-api", api)):
            self._write(name, "\n".join(f"== {path}\n{_fetch(port, path)}" for path in paths))

    def _metrics(self) -> None:
        found = []
        for name in ("pulse", "worker-1", "worker-2"):
            if self._processes[name].poll() is None:
                port = re.search(r"metrics are served on port (\d+)", self._text(f"{name}.err"))
                assert port is not None, name
                found.append(_fetch(int(port[1]), "/metrics"))
        assert len(found) >= 2, "at most one of these was killed"
        self._write("metrics", "\n".join(found))

    def _introspection(self, broker: redis.Redis) -> None:
        asked: Mapping[str, Any] = {
            "slowlog": broker.slowlog_get(1_000_000),
            "clients": broker.client_list(),
            "info": broker.info("everything"),
            "channels": broker.pubsub_channels(),
        }
        log = (self.folder / "home" / "valkey.log").read_text("utf-8", "replace")
        self._write("introspection", json.dumps(asked, default=repr) + log)

    def _tables(self, settings: Settings) -> None:
        (self.folder / "tables").mkdir()
        with Client(settings) as client:
            reflected = MetaData()
            reflected.reflect(client.database.engine)
            with client.database.read() as connection:
                for table in reflected.sorted_tables:
                    rows = connection.execute(select(table)).all()
                    self._write(f"tables/{table.name}", "\n".join(repr(tuple(row)) for row in rows))


def _fetch(port: int, path: str) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    request.add_header("Authorization", "Basic " + base64.b64encode(AUTH.encode()).decode())
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
            return str(answer.read().decode("utf-8", "replace"))
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code} {error.read().decode('utf-8', 'replace')}"
