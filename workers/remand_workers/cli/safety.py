"""What `doctor` looks at beyond "does it answer": who may read what, what outlives a restart, whose clock is wrong.

Each look gives findings and changes nothing. What an account may not ask is said to be unchecked, never to be well.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import redis
from celery import Celery
from redis.exceptions import NoPermissionError

from remand.pipeline import Pipeline
from remand_tasks.state.attempts import Attempts
from remand_tasks.state.engine import Database
from remand_tasks.state.vault import KeyRing

from ..settings import Settings
from .findings import Finding

SKEW: Final = 2.0
"""Seconds by which clocks may differ before it is said."""

_UNASKED: Final = "cannot be checked: this account may not ask"
_AS_ADMIN: Final = (
    "ask once with an account that may CONFIG GET and INFO, such as vault-admin in REMAND_VAULT_URL"
)


# ------------------------------------------------------------------------------------------------- the servers


def persistence(client: redis.Redis) -> Finding:
    """Whether the vault's server writes to a disk: sealed texts would outlive their expiry there."""
    part = "vault persistence"
    try:
        save = _setting(client, "save")
        append = _setting(client, "appendonly")
    except NoPermissionError:
        return Finding(part, "warn", _UNASKED, _AS_ADMIN)
    kept = [name for name, on in (("snapshots", bool(save)), ("an append-only file", append == "yes")) if on]
    if kept:
        todo = 'set `save ""` and `appendonly no`; where the broker must persist, give the vault a server of its own'
        return Finding(
            part, "warn", f"the server writes {' and '.join(kept)}: sealed texts reach a disk", todo
        )
    return Finding(part, "ok", "nothing reaches a disk")


def eviction(part: str, client: redis.Redis) -> Finding:
    """Whether the server throws keys away when its memory is full."""
    part = f"{part} memory"
    try:
        policy = _setting(client, "maxmemory-policy")
    except NoPermissionError:
        try:
            policy = str(client.info("memory").get("maxmemory_policy", ""))
        except NoPermissionError:
            return Finding(part, "warn", _UNASKED, _AS_ADMIN)
    if policy != "noeviction":
        todo = "set its maxmemory-policy to noeviction: what is evicted is work done twice"
        return Finding(part, "warn", f"it evicts keys when memory is full ({policy})", todo)
    return Finding(part, "ok", "noeviction")


def _setting(client: redis.Redis, name: str) -> str:
    found: Mapping[Any, Any] = client.config_get(name)
    value = next(iter(found.values()), "")
    return value.decode() if isinstance(value, bytes) else str(value)


def accounts(settings: Settings) -> Finding:
    """Whether who knows the broker's account has the vault's as well."""
    part = "accounts"
    if settings.broker_url is None or settings.vault_url is None:
        return Finding(part, "ok", "nothing to compare")
    if settings.broker_url.startswith("amqp"):
        return Finding(part, "ok", "the broker is no Redis")
    broker, vault = _account(settings.broker_url), _account(settings.vault_url)
    todo = "give the vault an account of its own: docs/how-to/lock-down-redis.md"
    if broker[1:] != vault[1:]:
        return Finding(part, "ok", "broker and vault have different accounts")
    if broker[0] == vault[0]:
        return Finding(
            part, "warn", "broker and vault share one account: who sees messages can read records", todo
        )
    return Finding(part, "warn", "broker and vault take the same user and password", todo)


def _account(url: str) -> tuple[str, str, str]:
    parts = urlsplit(url)
    place = f"{parts.hostname}:{parts.port or 6379}" if parts.hostname else parts.path
    return place, parts.username or "default", parts.password or ""


# ---------------------------------------------------------------------------------------------------- clocks


def clocks(client: redis.Redis, ledger_url: str | None) -> Finding:
    """This machine's clock, the database's and the Redis server's, which alone decides about leases."""
    attempts = Attempts(client)
    begun = time.time()
    server = attempts.now()
    off = {"this machine's": _beyond(server, begun, time.time())}
    if ledger_url is not None and not ledger_url.startswith("sqlite"):
        asked = attempts.now()
        database = Database(ledger_url, pool_size=1)
        try:
            with database.read() as connection:
                found = connection.exec_driver_sql(
                    "SELECT extract(epoch FROM clock_timestamp())"
                ).scalar_one()
        finally:
            database.dispose()
        off["the database's"] = _beyond(float(found), asked, attempts.now())
    wrong = [f"{whose} by {by:.1f} s" for whose, by in off.items() if by > SKEW]
    if wrong:
        todo = "let all follow a time server; leases use the Redis server's clock, so work is safe"
        return Finding("clock", "warn", f"differs from the Redis server's: {', '.join(wrong)}", todo)
    return Finding("clock", "ok", f"within {SKEW:g} s of the Redis server's")


def _beyond(value: float, earliest: float, latest: float) -> float:
    """How far `value` lies outside of an interval."""
    return max(earliest - value, value - latest, 0.0)


# --------------------------------------------------------------------------------------------------- workers


def serialization(app: Celery) -> Finding:
    """What our own application accepts: JSON alone, or a message could be made to run code."""
    accepted = {*app.conf.accept_content, *(app.conf.result_accept_content or ())}
    return _accepted("serialization", {"this program": sorted(accepted)})


def workers(
    replies: Mapping[str, Mapping[str, Any]], client: redis.Redis | None, asked: float
) -> Iterator[Finding]:
    """What live workers say of themselves; `asked` is the Redis server's time before they were asked."""
    yield _accepted("workers' serialization", {name: each["accepts"] for name, each in replies.items()})
    yield _same_keys({name: tuple(each["keys"]) for name, each in replies.items()})
    if client is None:
        return
    now = Attempts(client).now()
    off = {name: _beyond(float(each["now"]), asked, now) for name, each in replies.items()}
    wrong = [f"{name} by {by:.1f} s" for name, by in sorted(off.items()) if by > SKEW]
    if wrong:
        todo = "let their machines follow a time server: kombu restores messages by workers' clocks"
        yield Finding("workers' clocks", "warn", f"differ from the Redis server's: {', '.join(wrong)}", todo)
    else:
        yield Finding("workers' clocks", "ok", f"within {SKEW:g} s of the Redis server's")


def _accepted(part: str, accepted: Mapping[str, list[str]]) -> Finding:
    loose = {
        name: [kind for kind in kinds if kind not in ("json", "application/json")]
        for name, kinds in accepted.items()
    }
    told = [f"{name} {', '.join(kinds)}" for name, kinds in sorted(loose.items()) if kinds]
    if not told:
        return Finding(part, "ok", "JSON alone is accepted")
    dangerous = any(
        "pickle" in kind or "python-serialize" in kind for kinds in loose.values() for kind in kinds
    )
    todo = "run workers with `remand worker`, on no configuration of Celery's own: unpickling a message runs its code"
    return Finding(part, "fail" if dangerous else "warn", f"accepted beside JSON: {'; '.join(told)}", todo)


def _same_keys(held: Mapping[str, tuple[str, ...]]) -> Finding:
    part = "workers' keys"
    every = {key for keys in held.values() for key in keys}
    lacking = [
        f"{name} lacks {', '.join(sorted(every - set(keys)))}"
        for name, keys in sorted(held.items())
        if every - set(keys)
    ]
    if lacking:
        todo = "give all workers the same REMAND_VAULT_KEYS: docs/how-to/rotate-the-vault-key.md"
        return Finding(part, "warn", "; ".join(lacking), todo)
    return Finding(part, "ok", f"all hold {', '.join(sorted(every)) or 'none'}")


def own_keys(settings: Settings, replies: Mapping[str, Mapping[str, Any]]) -> Finding | None:
    """Whether the keys that are set here are those of the workers, by their names."""
    if settings.vault_keys is None or not replies:
        return None
    ours = set(KeyRing.parse(settings.vault_keys.get_secret_value()).ids)
    theirs = {key for each in replies.values() for key in each["keys"]}
    if ours == theirs:
        return None
    todo = "a worker started here would need the same REMAND_VAULT_KEYS as the others"
    return Finding(
        "vault keys here",
        "warn",
        f"set here: {', '.join(sorted(ours))}; workers': {', '.join(sorted(theirs))}",
        todo,
    )


def longest_step(pipeline: Pipeline, settings: Settings) -> Finding:
    """Whether a Redis broker waits longer for an acknowledgement than the pipeline's longest step may take."""
    part = "visibility timeout"
    if settings.broker_url is not None and settings.broker_url.startswith("amqp"):
        return Finding(part, "ok", "not used by this broker")
    grace = settings.claim_grace.total_seconds()
    longest = 0.0
    for stage in pipeline.stages:
        groups = [sum(stage.validators[i].timeout + grace for i in group) for group in stage.groups]
        longest = max([longest, stage.producer.deadline + grace, *groups])
    most = settings.visibility_timeout.total_seconds()
    if most <= longest:
        todo = "set REMAND_VISIBILITY_TIMEOUT above that, on every worker"
        found = f"{most:g} s, and a step may take {longest:g} s: its message is handed out again meanwhile"
        return Finding(part, "warn", found, todo)
    return Finding(part, "ok", f"{most:g} s, the longest step takes at most {longest:g} s")


# ---------------------------------------------------------------------------------------------------- Flower


def flower(settings: Settings) -> Finding:
    """Whether others can read Flower without a password: by what is set, and by asking whatever listens."""
    part, address, port = "flower", settings.flower_address, settings.flower_port
    if settings.flower_auth is None and not _loopback(address):
        todo = (
            "set REMAND_FLOWER_AUTH, or REMAND_FLOWER_ADDRESS to 127.0.0.1; until then Flower does not start"
        )
        return Finding(part, "fail", f"others can reach {address!r}, and no password is set", todo)
    if port == 0:
        return Finding(part, "ok", "takes a free port")
    here = address if _loopback(address) else "127.0.0.1"
    others = [
        each for each in {address, *_own_addresses()} if each and not _loopback(each) and not _any(each)
    ]
    for host in others:
        if _open(host, port):
            todo = "end it, and start it with `remand flower` and REMAND_FLOWER_AUTH"
            return Finding(
                part, "warn", f"a Flower at {host}:{port} shows itself to others without a password", todo
            )
    answer = _open(here, port)
    if answer is None:
        return Finding(part, "ok", "does not run here")
    if answer and settings.flower_auth is not None:
        todo = "start it again: it runs without the REMAND_FLOWER_AUTH that is set here"
        return Finding(part, "warn", f"a Flower at {here}:{port} asks for no password", todo)
    return Finding(part, "ok", "runs, for this machine alone" if answer else "runs, and asks for a password")


def _own_addresses() -> list[str]:
    try:
        return [
            str(each[4][0])
            for each in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
        ]
    except OSError:
        return []


def _open(host: str, port: int) -> bool | None:
    """Whether a Flower there shows its page without a password; `None` where there is none."""
    connection = http.client.HTTPConnection(host, port, timeout=2.0)
    try:
        connection.request("GET", "/workers")
        answer = connection.getresponse()
        if answer.status == 401:
            return False
        return True if answer.status == 200 and b"Flower" in answer.read(65_536) else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _loopback(address: str) -> bool:
    return address == "localhost" or _is(address, "is_loopback")


def _any(address: str) -> bool:
    return _is(address, "is_unspecified")


def _is(address: str, what: str) -> bool:
    try:
        return bool(getattr(ipaddress.ip_address(address), what))
    except ValueError:
        return False
