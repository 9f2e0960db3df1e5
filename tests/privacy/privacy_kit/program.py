"""Programs of users, with logging set up by themselves at DEBUG: one uses `Client`, one `run_local`.

`python -m privacy_kit.program client|local LOG ERRORS VALUES`. Every error that the interface raises at them and every
value that it gives them is written down in all the ways in which a program may show it.
"""

from __future__ import annotations

import logging
import math
import pickle
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import BaseModel
from sqlalchemy import text

from remand import Correction, Pipeline, Stage, load, producer, reject, run_local, validator
from remand.attempt import judge, produce, to_json
from remand.llm import ChatJudge, ChatProducer
from remand.testing import context
from remand_tasks.state.vault import KeyRing
from remand_tasks.token import Token
from remand_workers.client import Client, new_item
from remand_workers.settings import Settings
from remand_workers.surfaces import Kind

from . import pipeline as leaks
from .texts import CONTROL, planted

INPUT = planted(Kind.INPUT, "client")


class Diary:
    """Writes down errors and values."""

    def __init__(self, errors: BinaryIO, values: BinaryIO) -> None:
        self.errors, self.values = errors, values

    def error(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Call it; it must raise."""
        try:
            function(*args, **kwargs)
        except BaseException as error:
            self._error(name, error)
        else:
            raise AssertionError(f"{name}: nothing was raised")

    def _error(self, name: str, error: BaseException) -> None:
        shown = [f"== {name}", str(error), repr(error), *traceback.format_exception(error), repr(vars(error))]
        logging.getLogger("a.program").error("it failed: %s", error, exc_info=error)
        self.errors.write("\n".join(shown).encode("utf-8", "backslashreplace") + b"\n")
        try:
            self.errors.write(pickle.dumps(error))
        except (pickle.PicklingError, TypeError, AttributeError):
            self.errors.write(b"(it cannot be pickled)")
        self.errors.write(b"\n")
        self.errors.flush()

    def value(self, value: Any) -> None:
        """A public value, as programs print them."""
        for shown in (repr(value), str(value), f"{value}", f"{[value]}"):
            self.values.write(shown.encode() + b"\n")
        self.values.flush()
        logging.getLogger("a.program").info("it gave %s", value)


class Narrow(BaseModel):
    """A type that no value of the runs has."""

    do: int
    note: int


@producer(version="1", output=Narrow)
def narrow(given: Any, correction: Any) -> Any:
    """Never called."""


other = Pipeline("other", version="1", stages=[Stage("s", narrow)])


def client(diary: Diary) -> None:
    """Submit, wait, read results; and do all that wrongly."""
    settings = Settings()
    with Client(settings) as using:
        run = using.submit(
            leaks.pipeline, leaks.inputs(("good", "module_guided")), run_id=f"client-{CONTROL}"
        )
        diary.value(run)
        diary.value(settings)
        run.wait(60)
        for outcome in run.results():
            diary.value(outcome)
            diary.value(replace(outcome, code="x"))
        diary.value(run.status())
        strict = using.submit(
            leaks.strict, [{"do": "module_contract", "text": INPUT}], run_id=f"strict-{CONTROL}", reuse=False
        )
        strict.wait(60)
        for outcome in strict.results():
            diary.value(outcome)
        run.pipeline = other
        diary.error("a value of another type", list, run.results())
        begun = using.begin(leaks.pipeline, run_id=f"errors-{CONTROL}")
        diary.error("wait", begun.wait, 0.01)
        deep: Any = INPUT
        for _ in range(3_000):
            deep = [deep]
        for name, value in (
            ("NaN", {"text": INPUT, "n": math.nan}),
            ("surrogate", {"text": INPUT + "\ud800"}),
            ("object", {"text": INPUT, "o": object()}),
            ("bytes", {"text": INPUT.encode()}),
            ("deep", deep),
        ):
            diary.error(f"feed {name}", using.feed, begun, [(0, value)])
        for key in (INPUT + "\n", INPUT * 10, [INPUT], 1.5):
            diary.error("feed key", using.feed, begun, [(0, {"id": key})], key="id")
        diary.error("feed key", using.feed, begun, [(0, {"text": INPUT})], key="id")
        diary.error("begin", using.begin, leaks.strict, run_id=f"errors-{CONTROL}")
        diary.error(
            "an ended run", using.submissions.feed, f"client-{CONTROL}", [new_item(9, INPUT, None)], 0.0
        )
        diary.error("no run", using.run, "nothing")
        begun.cancel()
        cancelled = using.submit(
            leaks.pipeline,
            leaks.inputs(("cancelled",)) * 3,
            run_id=f"cancelled-{CONTROL}",
            window=2,
            reuse=False,
        )
        while cancelled.status().in_flight == 0:
            time.sleep(0.05)
        diary.value(cancelled.cancel())
        cancelled.wait(60)
    broken = Path("broken.db").absolute()
    settings = settings.replace(ledger_url=f"sqlite:///{broken}")
    with Client(settings) as using:
        begun = using.begin(leaks.pipeline, run_id="broken")
        with using.database.write() as connection:
            connection.execute(text("DROP TABLE payloads"))
        diary.error("a broken ledger", using.feed, begun, [(0, {"text": INPUT})])
        diary.error("a broken ledger", list, using.run("broken").results())
    nowhere = settings.replace(vault_url="unix:///nowhere/at/all.sock")
    with Client(nowhere) as using:
        diary.error("no server", using.submit, leaks.pipeline, [{"text": INPUT}])
    for path in broken.parent.glob("broken.db*"):
        path.unlink()
    diary.error("token", Token.parse, f"{INPUT}/0/0/0/0")
    diary.error("keys", KeyRing.parse, planted(Kind.EXCEPTION))
    rings = KeyRing.parse(KeyRing.generate()), KeyRing.parse(KeyRing.generate("k2"))
    diary.error("vault", rings[0].open, "a/0/x", rings[1].seal("a/0/x", INPUT.encode()))
    diary.error("vault", rings[0].open, "a/0/x", INPUT.encode())
    diary.error("settings", Settings, vault_url=1, window=INPUT, claim_lease=INPUT, log_level=INPUT)
    diary.error("load", load, "privacy_kit.nothing:here")


def local(diary: Diary) -> None:
    """Run in this process; call producers, judges and what stands under them by hand."""
    dos = tuple(do for do in leaks.ITEMS if do not in ("kill", "slow", "hangs", "turncoat", "module_messy"))
    for outcome in run_local(leaks.pipeline, leaks.inputs(dos)):
        diary.value(outcome)
        diary.value(outcome.verdicts)
    diary.error("input", run_local, leaks.pipeline, [{"text": INPUT, "n": math.nan}])
    given = context({"do": "good", "text": INPUT}, previous=planted(Kind.VALUE))
    candidate = leaks.Answer(do="good", note=planted(Kind.CANDIDATE))
    correction = Correction("single_response_v1", planted(Kind.RESPONSE), planted(Kind.GUIDANCE))
    for value in (given, correction, leaks.module(given, correction), leaks.extract.producer(given, None)):
        diary.value(value)
    diary.value(produce(leaks.extract.producer, given, correction))
    diary.value(judge(leaks.checks, leaks.module, to_json(leaks.module, candidate), lambda: given))
    diary.value(leaks.checks.function(candidate, given))
    diary.value(reject(planted(Kind.FINDING), path=planted(Kind.FINDING), code=planted(Kind.FINDING)))
    broken = ChatJudge("t", version="1", rubric=planted(Kind.PROMPT), model="judge")
    diary.error("judge", broken.function, candidate, context({"do": "judge_broken"}))
    no_json = ChatProducer(int, lambda _: [{"role": "user", "content": "[[structural]]"}], version="1")
    diary.error("producer", no_json, given)
    for prompt in (
        planted(Kind.PROMPT) + " {a",
        planted(Kind.PROMPT) + " {a.b}",
        lambda _: leaks.trouble("prompt"),
    ):
        diary.error("prompt", lambda prompt=prompt: ChatProducer(int, prompt, version="1")(given))
    asked = ChatProducer(int, planted(Kind.PROMPT) + " {" + "missing}", version="1")
    diary.error("prompt field", asked, given)
    diary.error("value", to_json, leaks.module, {"do": INPUT, "note": math.nan})
    diary.error("truth", bool, reject(planted(Kind.FINDING)))
    diary.error("reject", reject, [planted(Kind.FINDING)])

    @validator(version="1")
    def wrong(value: Any, given: Any) -> Any:
        return planted(Kind.FINDING)

    diary.value(judge(wrong, leaks.module, to_json(leaks.module, candidate), lambda: given))


if __name__ == "__main__":
    which, log, errors, values = sys.argv[1:]
    logging.basicConfig(
        filename=log, level=logging.DEBUG, format="%(name)s %(message)s %(args)s %(exc_info)s"
    )
    logging.getLogger("sqlalchemy.engine").setLevel(logging.INFO)
    logging.captureWarnings(True)
    warnings.simplefilter("always")
    with open(errors, "wb") as written, open(values, "wb") as shown:
        {"client": client, "local": local}[which](Diary(written, shown))
