"""Starts worker processes fast: it has imported everything and has no thread, and each worker is a fork of it.

It reads one JSON object a line from standard input (`number`, `environment`, `log`, `fresh`) and says `started NUMBER
PID` and `ended NUMBER STATUS` on standard output (a negative status is the signal that ended it). When its input ends
it kills every worker and ends. With `fresh`, the worker is not forked but a new interpreter.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import sys
from typing import Any


def serve() -> int:
    """Be a worker. The exit status."""
    from chaos_kit.pipeline import WORKER_QUEUES
    from remand_workers.process import run_worker
    from remand_workers.settings import Settings

    number = os.environ["CHAOS_NUMBER"]
    queues = tuple(filter(None, os.environ.get("CHAOS_QUEUES", "").split(","))) or WORKER_QUEUES
    return run_worker(
        Settings(),
        queues=queues,
        name=f"chaos-{number}-{os.getpid()}",
        ready=lambda: print(f"ready {os.getpid()}", flush=True),
    )


def _become(order: dict[str, Any]) -> None:
    """In the child: the order's environment and log, nothing of the parent's."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it dies with the process that forked it.
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(order["environment"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(order["log"], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    for descriptor, wanted in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, wanted)
    os.chdir(os.path.dirname(order["log"]))


def _start(order: dict[str, Any]) -> int:
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        _become(order)
        if order.get("fresh"):
            program = (
                "import remand_tasks.faults; from chaos_kit.zygote import serve; raise SystemExit(serve())"
            )
            os.execve(sys.executable, [sys.executable, "-c", program], dict(os.environ))
        from remand_tasks import faults

        faults.arm(os.environ)
        status = serve()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main() -> int:
    """Start workers until the input ends."""
    import openai  # noqa: F401
    import psycopg  # noqa: F401

    import chaos_kit.pipeline  # noqa: F401
    import remand_workers.process  # noqa: F401

    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing)
    chooser = selectors.DefaultSelector()
    chooser.register(0, selectors.EVENT_READ)
    chooser.register(reading, selectors.EVENT_READ)
    children: dict[int, int] = {}
    pending = b""
    print("zygote", os.getpid(), flush=True)
    while True:
        ready = {key.fd for key, _ in chooser.select()}
        if reading in ready:
            os.read(reading, 4096)
            while children:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                print("ended", children.pop(pid), pid, os.waitstatus_to_exitcode(status), flush=True)
        if 0 in ready:
            said = os.read(0, 65536)
            if not said:
                break
            *lines, pending = (pending + said).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = _start(order)
                children[pid] = order["number"]
                print("started", order["number"], pid, flush=True)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        os.waitpid(pid, 0)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
