"""Runs the example from end to end: a model server if none is named, `remand run`, then the score.

    python examples/citations/run.py            # a small model on this machine
    REMAND_MODEL_BASE_URL=... REMAND_MODEL=... python examples/citations/run.py     # any other model

Everything is a process of its own; this script only starts and ends them, and needs nothing but the standard library.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
INPUT: Final = ROOT / "examples" / "citations" / "citations.jsonl"
OUTPUT: Final = ROOT / "build" / "citations.jsonl"
SMALL_MODEL_PIPELINE: Final = "examples.citations.pipeline:pipeline"
PIPELINE: Final = "examples.citations.pipeline:corrected"
REGISTRY: Final = "works"
LOCAL_MODEL: Final = "smollm2-135m-instruct"
BOTH: Final = ("REMAND_MODEL_BASE_URL", "REMAND_MODEL")
DEGRADED: Final = 3

EPILOG: Final = f"""\
what happens
  1. Without a model of your own, a 135-million-parameter model is served on this machine (about 1 second).
  2. `remand run` extracts author, title and year from {INPUT.name}. Validators compare every field with the citation;
     what they reject is tried again, and set aside for a person when the attempts are spent.
  3. The accepted records go into a registry of works, which finds those that several citations cite.
  4. Records and works are compared with gold.jsonl, which no validator sees.

another model
  REMAND_MODEL_BASE_URL=http://127.0.0.1:11434/v1 REMAND_MODEL=qwen3:4b python examples/citations/run.py
  Any OpenAI-compatible server will do. Set REMAND_MODEL_API_KEY where it asks for a key.

other citations
  --input takes JSON lines such as {{"id": "x1", "text": "Shannon, C. E. (1948). ..."}}. Without answers of your own
  in --gold there is no score.

exit status
  0 all accepted, 3 some set aside (to be expected of a small model), 1 failed, 130 interrupted
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example. Returns the exit status of `remand run`."""
    options = _options(arguments)
    named = [name for name in BOTH if os.environ.get(name)]
    if len(named) == 1:
        missing = next(name for name in BOTH if name not in named)
        print(
            f"{named[0]} is set and {missing} is not. Set both for your own model, or neither.",
            file=sys.stderr,
        )
        return 2
    options.output.parent.mkdir(parents=True, exist_ok=True)
    if named:
        status = _extract(options, PIPELINE, {})
    else:
        with _local_server() as base_url:
            if base_url is None:
                return 1
            # It answers four requests at a time on a processor; more in line would only wait until they time out.
            options.rest = ["--workers", "1", "--concurrency", "6", *options.rest]
            model = {"REMAND_MODEL_BASE_URL": base_url, "REMAND_MODEL": LOCAL_MODEL}
            status = _extract(options, SMALL_MODEL_PIPELINE, model)
    if status not in (0, DEGRADED):
        return status
    exported = _export_works(options)
    if exported:
        return exported
    if options.gold is not None:
        command = [
            sys.executable,
            "-m",
            "examples.citations.score",
            str(options.output),
            "--gold",
            str(options.gold),
            "--works",
            str(options.works),
        ]
        scored = subprocess.run(command, cwd=ROOT, check=False).returncode
        if scored:
            return scored
    print(f"Records: {_shown(options.output)}  Works: {_shown(options.works)}")
    return status


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Extract author, title and year from real citations, check them, and say how right they are.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--input", type=Path, default=INPUT, help=f"citations (default: {_shown(INPUT)})")
    parser.add_argument("--output", type=Path, default=OUTPUT, help=f"records (default: {_shown(OUTPUT)})")
    parser.add_argument(
        "--gold", type=Path, help="right answers for --input (default: the example's for its own)"
    )
    parser.add_argument(
        "rest", nargs="*", metavar="-- OPTION", help="more options for `remand run`, after --"
    )
    options = parser.parse_args(arguments)
    for name in ("input", "output", "gold"):
        path = getattr(options, name)
        setattr(options, name, None if path is None else path.resolve())
    options.works = options.output.with_name("works.jsonl")
    if options.gold is None and options.input == INPUT:
        options.gold = INPUT.with_name("gold.jsonl")
    return options


def _extract(options: argparse.Namespace, pipeline: str, model: Mapping[str, str]) -> int:
    """`remand run` over the inputs. Signals that this process gets meanwhile are handed on, one for one."""
    command = [sys.executable, "-m", "remand_workers.cli", "run", pipeline, "--key", "id"]
    command += ["--input", str(options.input), "--output", str(options.output), *options.rest]
    # A group of its own: a Ctrl-C would reach it twice otherwise, and twice means "at once".
    child = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **model}, process_group=0)

    def hand_on(number: int, _frame: FrameType | None) -> None:
        child.send_signal(number)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, hand_on) for number in signals]
    try:
        return child.wait()
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def _export_works(options: argparse.Namespace) -> int:
    """`remand registry export` of the works that the accepted records are about."""
    command = [sys.executable, "-m", "remand_workers.cli", "registry", "export", REGISTRY]
    return subprocess.run([*command, "--output", str(options.works)], cwd=ROOT, check=False).returncode


@contextmanager
def _local_server() -> Iterator[str | None]:
    """The base URL of a small model served by a process that ends with this context, or with this process."""
    command = [sys.executable, "-m", "examples.citations.local_model", "--while-stdin-is-open"]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, process_group=0
        )
        assert server.stdout is not None
        assert server.stdin is not None
        try:
            base_url = server.stdout.readline().decode().strip()
            if not base_url:
                server.wait()
                log.seek(0)
                print(log.read().decode(errors="replace").strip(), file=sys.stderr)
            yield base_url or None
        finally:
            server.stdin.close()
            server.terminate()
            try:
                server.wait(timeout=10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:
        raise SystemExit(130) from None
