"""A reader for each surface: it takes the folder of evidence and gives back all that the surface held."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from pathlib import Path

Reader = Callable[[Path], bytes]

_BODY = re.compile(rb'\\*"body\\*": \\*"([A-Za-z0-9+/=]+)\\*"')


def _files(*patterns: str) -> Reader:
    def read(folder: Path) -> bytes:
        found = sorted(path for pattern in patterns for path in folder.glob(pattern))
        assert found, f"no evidence: {patterns}"
        return b"\n".join(path.read_bytes() for path in found)

    return read


def bodies(traffic: bytes) -> list[bytes]:
    """The decoded body of every message in there."""
    found = []
    for coded in _BODY.findall(traffic):
        try:
            found.append(base64.b64decode(coded, validate=True))
        except binascii.Error as error:
            raise AssertionError("a body that is no base64") from error
    return found


def task_messages(folder: Path) -> bytes:
    """The commands that carry task messages."""
    return b"\n".join(line for line in (folder / "traffic").read_bytes().split(b"\n") if b"argsrepr" in line)


def _messages(folder: Path) -> bytes:
    return b"\n".join([*bodies(task_messages(folder)), task_messages(folder)])


def _traffic(folder: Path) -> bytes:
    whole = (folder / "traffic").read_bytes()
    return b"\n".join([whole, *bodies(whole)])


def _ledger(folder: Path) -> bytes:
    tables = [path for path in sorted((folder / "tables").iterdir()) if path.name not in _APART]
    assert {path.name for path in tables} >= {"runs", "items"}
    return b"\n".join(path.read_bytes() for path in tables)


_APART = ("payloads", "registry_records", "receipts", "checkpoints", "intake_dead")


def _left_files(folder: Path) -> bytes:
    found = []
    for name in ("home", "work", "temp"):
        for path in sorted((folder / name).rglob("*")):
            found.append(str(path.relative_to(folder)).encode())
            if path.is_file() and not path.name.startswith("ledger.db"):
                found.append(path.read_bytes())
    return b"\n".join(found)


READERS: dict[str, Reader] = {
    "server traffic": _traffic,
    "task messages": _messages,
    "redis keys": _files("keys"),
    "vault bytes": _files("vault"),
    "server introspection": _files("introspection"),
    "task events": _files("events"),
    "remote control": _files("control"),
    "result backend": _files("results"),
    "worker logs": _files("worker-*.err"),
    "pulse logs": _files("pulse.err"),
    "intake logs": _files("intake.err"),
    "client logs": _files("client.log"),
    "standard streams": _files(
        *(
            f"{name}.{end}"
            for name in ("worker-*", "pulse", "intake", "flower", "client", "local")
            for end in ("out", "err")
        )
    ),
    "flower pages": _files("flower-pages"),
    "flower api": _files("flower-api"),
    "flower database": _files("flower.db*"),
    "metrics": _files("metrics"),
    "spans": _files("spans-*"),
    "receipts": _files("tables/receipts"),
    "checkpoints": _files("tables/checkpoints"),
    "dead letters": _files("tables/intake_dead"),
    "ledger": _ledger,
    "payload table": _files("tables/payloads", "tables/registry_records"),
    "errors": _files("client.errors", "local.errors"),
    "values": _files("client.values", "local.values"),
    "local driver": _files("local.log", "local.out", "local.err"),
    "command line": _files("cli.out", "cli.err"),
    "progress": _files("progress", "run.out"),
    "outputs": _files("data/out.jsonl", "results.out"),
    "payload on request": _files("payload.out"),
    "files": _left_files,
    "processes": _files("processes"),
    "foreign messages": _files("foreign"),
}
