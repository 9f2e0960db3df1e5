"""`doctor`: looks at everything that a run needs, changes nothing, and says what to do about what is not well."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import NoPermissionError
from sqlalchemy.exc import SQLAlchemyError

from remand.errors import PipelineError, RemandError
from remand.pipeline import Pipeline, load
from remand_tasks.routing import COORDINATE, PRODUCE, VALIDATE
from remand_tasks.state.attempts import Attempts
from remand_tasks.state.engine import Database
from remand_tasks.state.migrate import current, head
from remand_tasks.state.vault import KeyRing

from .. import remote
from ..app import connect, create_app
from ..embedded import Embedded, ledger_url, running, server_command
from ..settings import Settings
from . import safety
from .console import coloured, plural, table, write_json, write_table
from .failures import FAILED, explain
from .findings import Finding
from .models import asks_named_server, unreachable

_PACKAGES = ("remand", "celery", "kombu", "redis", "sqlalchemy", "pydantic", "openai", "flower")


def examine(settings: Settings, target: str | None, *, json: bool) -> int:
    """Look at everything. Exit status 1 if a part is not well."""
    with ExitStack() as stack:
        findings = list(_look(settings, target, stack))
    if json:
        write_json([asdict(finding) for finding in findings])
    else:
        rows = [(each.part, coloured(each.health), each.found, each.todo or "-") for each in findings]
        write_table(table(("part", "health", "found", "what to do"), rows))
    return FAILED if any(each.health == "fail" for each in findings) else 0


def _look(settings: Settings, target: str | None, stack: ExitStack) -> Iterator[Finding]:
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield Finding("packages", "ok", ", ".join(f"{name} {_version(name)}" for name in _PACKAGES))
    yield _home(settings)
    filled = settings
    if settings.embedded:
        services, filled = _embedded(settings, stack)
        yield services
    pipeline: Pipeline | None = None
    if target is not None:
        found, pipeline = _pipeline(target)
        yield found
    yield _keys(filled)
    yield _ledger(filled)
    vault = connect(filled) if filled.vault_url is not None else None
    if vault is not None:
        stack.callback(vault.close)
    found = _vault(filled, vault)
    yield found
    if vault is not None and found.health == "fail":
        vault = None
    if vault is not None:
        yield from _asked(vault, filled)
    if not settings.embedded:
        yield safety.accounts(filled)
    if pipeline is not None:
        yield safety.longest_step(pipeline, filled)
    yield from _workers(filled, pipeline, vault)
    yield safety.flower(settings)
    yield _model(settings, pipeline)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _home(settings: Settings) -> Finding:
    home = settings.home.absolute()
    place = next(path for path in (home, *home.parents) if path.exists())
    if place == home and not home.is_dir():
        return Finding("home", "fail", f"{str(home)!r} is no folder", "name a folder in REMAND_HOME")
    if not os.access(place, os.W_OK | os.X_OK):
        return Finding(
            "home", "fail", f"{str(place)!r} may not be written", "change its rights, or set REMAND_HOME"
        )
    return Finding("home", "ok", f"{str(home)!r}{'' if place == home else ', which will be made'}")


def _embedded(settings: Settings, stack: ExitStack) -> tuple[Finding, Settings]:
    if running(settings) is not None:
        try:
            filled = stack.enter_context(Embedded(settings)).settings
        except RemandError as error:
            return Finding("embedded services", "fail", str(error)), settings
        return Finding("embedded services", "ok", "running"), filled
    try:
        command = server_command()
    except RemandError as error:
        return Finding("embedded services", "fail", "no server is installed", str(error)), settings
    filled = settings
    if settings.ledger_url is None and (settings.home / "ledger.db").exists():
        filled = settings.replace(ledger_url=ledger_url(settings.home))
    return Finding(
        "embedded services", "ok", f"not running; they start with a run ({Path(command).name})"
    ), filled


def _pipeline(target: str) -> tuple[Finding, Pipeline | None]:
    try:
        pipeline = load(target)
    except PipelineError as error:
        return Finding("pipeline", "fail", f"refused: {error}", "mend it; nothing can run it as it is"), None
    worst = pipeline.worst_case().generations
    found = f"{pipeline.name} version {pipeline.version}, {plural(len(pipeline.stages), 'stage')}, at worst "
    found += plural(worst, "generation")
    return Finding("pipeline", "ok", found), pipeline


def _keys(settings: Settings) -> Finding:
    if settings.vault_keys is None:
        if settings.embedded:
            return Finding("vault keys", "ok", "made and kept by the embedded services")
        found = "none here: right where runs are only submitted and watched"
        return Finding(
            "vault keys", "warn", found, "for a worker, set REMAND_VAULT_KEYS, to the others' keys"
        )
    try:
        KeyRing.parse(settings.vault_keys.get_secret_value())
    except RemandError as error:
        return Finding("vault keys", "fail", str(error), "mend REMAND_VAULT_KEYS")
    return Finding("vault keys", "ok", "readable")


def _ledger(settings: Settings) -> Finding:
    if settings.ledger_url is None:
        if settings.embedded:
            return Finding("ledger", "ok", "none yet; the first run makes it")
        return Finding(
            "ledger", "fail", "none", "set REMAND_LEDGER_URL, to the same database on every worker"
        )
    try:
        database = Database(settings.ledger_url)
    except RemandError as error:
        return Finding("ledger", "fail", str(error), "mend REMAND_LEDGER_URL")
    try:
        has = current(database)
    except Exception as error:
        return Finding(
            "ledger", "fail", explain(error)[0], "check REMAND_LEDGER_URL and that the server runs"
        )
    finally:
        database.dispose()
    kind = "SQLite" if database.sqlite else "PostgreSQL"
    if has == head():
        return Finding("ledger", "ok", f"{kind}, revision {has}")
    found = f"{kind}, " + ("no tables yet" if has is None else f"revision {has}; this version needs {head()}")
    return Finding("ledger", "warn" if database.sqlite else "fail", found, "run `remand migrate`")


def _vault(settings: Settings, client: redis.Redis | None) -> Finding:
    if client is None:
        if settings.embedded:
            return Finding("vault", "ok", "starts with a run")
        return Finding(
            "vault", "fail", "none", "set REMAND_VAULT_URL: the broker is no Redis that could hold it"
        )
    try:
        client.time()
        facts: Any = client.info("server")
    except NoPermissionError:
        return Finding("vault", "ok", "answers")
    except redis.RedisError as error:
        return Finding("vault", "fail", explain(error)[0], "check REMAND_VAULT_URL or REMAND_BROKER_URL")
    name = facts.get("server_name") or "redis"
    return Finding("vault", "ok", f"{name} {facts.get('valkey_version') or facts.get('redis_version')}")


def _asked(client: redis.Redis, settings: Settings) -> Iterator[Finding]:
    """What the vault's server tells about itself."""
    looks: tuple[tuple[str, Callable[[], Finding]], ...] = (
        ("vault persistence", lambda: safety.persistence(client)),
        ("vault memory", lambda: safety.eviction("vault", client)),
        ("clock", lambda: safety.clocks(client, settings.ledger_url)),
    )
    for part, look in looks:
        try:
            yield look()
        except (redis.RedisError, SQLAlchemyError, RemandError) as error:
            yield Finding(part, "warn", f"cannot be checked. {explain(error)[0]}", "mend that first")


def _workers(settings: Settings, pipeline: Pipeline | None, vault: redis.Redis | None) -> Iterator[Finding]:
    if settings.broker_url is None:
        yield Finding("broker", "ok", "starts with a run")
        return
    app = create_app(settings, works=False)
    told: dict[str, dict[str, Any]] = {}
    try:
        with app.connection_for_read() as connection:
            connection.ensure_connection(max_retries=1, timeout=5)
            yield Finding("broker", "ok", f"{connection.transport.driver_type} answers")
            if connection.transport.driver_type == "redis":
                yield safety.eviction("broker", connection.default_channel.client)
            serving = app.control.inspect(timeout=1.0, connection=connection).active_queues() or {}
            asked = 0.0 if vault is None else Attempts(vault).now()
            if serving:
                replies = app.control.broadcast(
                    remote.COMMAND, reply=True, timeout=1.0, limit=len(serving), connection=connection
                )
                told = {name: facts for reply in replies for name, facts in reply.items() if "now" in facts}
    except Exception as error:
        yield Finding(
            "broker", "fail", explain(error)[0], "check REMAND_BROKER_URL, and that the server runs"
        )
        return
    yield safety.serialization(app)
    if not serving:
        todo = "start some with `remand worker`; busy ones may be too slow to answer"
        yield Finding("workers", "warn", "none answers", todo)
        return
    yield Finding("workers", "ok", f"{len(serving)} answer: {', '.join(sorted(serving))}")
    if told:
        yield from safety.workers(told, vault, asked)
        differs = safety.own_keys(settings, told)
        if differs is not None:
            yield differs
    served = {queue["name"] for queues in serving.values() for queue in queues}
    needed = {PRODUCE, VALIDATE, COORDINATE}
    if pipeline is not None:
        own = (validator.queue for stage in pipeline.stages for validator in stage.validators)
        needed |= {queue for queue in own if queue is not None}
    missing = sorted(needed - served)
    if missing:
        todo = f"start a worker for them: remand worker --queues {','.join(missing)}"
        yield Finding("queues", "fail", f"nobody serves {', '.join(missing)}", todo)
    else:
        yield Finding("queues", "ok", f"{', '.join(sorted(needed))} are served")


def _model(settings: Settings, pipeline: Pipeline | None) -> Finding:
    if settings.model_base_url is None:
        return Finding("model server", "ok", "none named in REMAND_MODEL_BASE_URL")
    try:
        problem = unreachable(settings.model_base_url)
    except RemandError as error:
        return Finding("model server", "fail", str(error))
    if problem is None:
        return Finding("model server", "ok", "answers")
    matters = pipeline is None or asks_named_server(pipeline)
    return Finding(
        "model server", "fail" if matters else "warn", problem, "start it, or mend REMAND_MODEL_BASE_URL"
    )
