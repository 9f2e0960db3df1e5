"""Makes the aclfiles of the broker's and the vault's server from the pages beside it.

    umask 077; python deploy/redis/render.py --into acl --queue own.queue > passwords.env

The files hold hashes; the passwords go to standard output, one `NAME=PASSWORD` a line. A password that the environment
has under that name is kept, so that a second call with them changes nothing else. `--queue` names each queue that
a validator has for itself (`@validator(queue=...)`). With `--one-server` all accounts are in one file, `redis.acl`.
Needs nothing but Python. It refuses passwords that would have to be escaped in a URL.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGES = ("broker", "vault")
_PASSWORD = re.compile(r"[A-Za-z0-9_-]{8,}")
_QUEUE = re.compile(r"[A-Za-z0-9_.-]+")


def names(page: str) -> list[str]:
    """The passwords that a page asks for."""
    return re.findall(r"@((?:BROKER|VAULT)_[A-Z]+)@", page)


def rendered(page: str, passwords: Mapping[str, str], queues: Sequence[str] = ()) -> str:
    """The aclfile: one line an account, its shared parts written out, passwords as hashes."""
    blocks: dict[str, list[str]] = {}
    block: list[str] = []
    for line in page.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith(" "):
            block = blocks.setdefault(line, [])
        else:
            block.append(line.strip())
    lines = []
    for head, body in blocks.items():
        if head.startswith("user "):
            whole = [part for line in body for part in (blocks[line] if line.startswith(":") else [line])]
            lines.append(" ".join([head, *whole]))
    text = "\n".join(lines) + "\n"
    for name in names(page):
        text = text.replace(f"@{name}@", "#" + hashlib.sha256(passwords[name].encode()).hexdigest())
    for word, right in (("READ", "~"), ("WRITE", "%W~"), ("LENGTH", "%R~")):
        text = text.replace(f"@{word}@", " ".join(f"{right}{queue}*" for queue in queues))
    return re.sub(r" {2,}", " ", text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, print the passwords. The exit status."""
    parser = argparse.ArgumentParser(description="Make aclfiles for Redis or Valkey, and passwords for them.")
    parser.add_argument(
        "--into", type=Path, default=Path("."), help="the folder for broker.acl and vault.acl"
    )
    parser.add_argument(
        "--queue", action="append", default=[], help="a validator's own queue; may be repeated"
    )
    parser.add_argument("--one-server", action="store_true", help="one file, for a server that is both")
    given = parser.parse_args(arguments)
    pages = {name: (HERE / f"{name}.acl.in").read_text("utf-8") for name in PAGES}
    wanted = [name for page in pages.values() for name in names(page)]
    passwords = {name: os.environ.get(name) or secrets.token_urlsafe(24) for name in wanted}
    bad = [name for name, password in passwords.items() if not _PASSWORD.fullmatch(password)]
    bad += [queue for queue in given.queue if not _QUEUE.fullmatch(queue)]
    if bad:
        print(f"letters, digits, - and _ only, passwords of 8 or more: {', '.join(bad)}", file=sys.stderr)  # noqa: T201
        return 2
    given.into.mkdir(parents=True, exist_ok=True)
    made = {name: rendered(page, passwords, given.queue) for name, page in pages.items()}
    if given.one_server:
        made = {"redis": "".join(dict.fromkeys("".join(made.values()).splitlines(keepends=True)))}
    for name, text in made.items():
        (given.into / f"{name}.acl").write_text(text, "utf-8")
    sys.stdout.writelines(f"{name}={password}\n" for name, password in passwords.items())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
