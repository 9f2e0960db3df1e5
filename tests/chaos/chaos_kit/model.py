"""The model server, whose log is the truth about who paid for what, and which validator was asked about it."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

from remand.testing import RecordedRequest, Reply, ScriptedModel


@dataclass(frozen=True, slots=True)
class Call:
    """One request to the model that it answered or failed on. `candidate` says whether the answer can be read."""

    id: int
    run: str
    item: int
    stage: str
    attempt: int
    pid: int
    do: str
    candidate: bool
    messages: int


@dataclass(frozen=True, slots=True)
class Asked:
    """One call of a validator, about the answer with the id `call`."""

    run: str
    item: int
    stage: str
    attempt: int
    pid: int
    validator: str
    call: int


GENERATIONS = {"good": 2, "correct": 3, "malformed": 3, "fail": 3, "throttle": 2, "break": 2}
"""Generations that an item takes when nothing is killed, by its input's `do`, in the two stages of `pipeline`."""


class Model:
    """Answers by the `do` of the input that a request names. Used as a context manager."""

    def __init__(self, *, delay: float = 0.05) -> None:
        self.delay = delay
        self._lock = threading.Lock()
        self.calls: list[Call] = []
        self.asked: list[Asked] = []
        self._noted: Counter[tuple[int, str]] = Counter()
        self._throttled: set[tuple[str, int, str]] = set()
        self._server = ScriptedModel(self._reply, keep=1)

    def __enter__(self) -> Model:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    @property
    def errors(self) -> list[Exception]:
        """What this server's own script raised."""
        return list(self._server.errors)

    @property
    def base_url(self) -> str:
        """What goes into `REMAND_MODEL_BASE_URL`."""
        return self._server.base_url

    def calls_of(self, run: str) -> list[Call]:
        """Generations of a run."""
        with self._lock:
            return [call for call in self.calls if call.run == run]

    def asked_of(self, run: str) -> list[Asked]:
        """Validators asked in a run."""
        with self._lock:
            return [asked for asked in self.asked if asked.run == run]

    def _reply(self, request: RecordedRequest) -> Reply:
        # Before a schema that the client may add stands what the pipeline's own prompt says.
        text = request.messages[0]["content"]
        said: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0]
        with self._lock:
            if request.body["model"] == "note":
                return self._note(said)
            return self._generate(said, len(request.messages))

    def _note(self, said: dict[str, Any]) -> Reply:
        self.asked.append(
            Asked(*(said[name] for name in ("run", "item", "stage", "attempt", "pid", "validator", "call")))
        )
        self._noted[said["call"], said["validator"]] += 1
        return Reply(str(self._noted[said["call"], said["validator"]]))

    def _generate(self, said: dict[str, Any], messages: int) -> Reply:
        do, early = said["do"], said["stage"] == "first" and said["attempt"] == 1
        at = (said["run"], said["item"], said["stage"])
        if do == "throttle" and at not in self._throttled:
            self._throttled.add(at)
            return Reply("later", status=429, headers={"retry-after": "0.2"})
        broken = early and do in ("malformed", "fail")
        call = Call(
            len(self.calls), said["run"], said["item"], said["stage"], said["attempt"], said["pid"], do, not broken,
            messages,
        )  # fmt: skip
        self.calls.append(call)
        if broken and do == "fail":
            return Reply("broken", status=500, delay=self.delay)
        if broken:
            return Reply("This is no JSON.", delay=self.delay)
        made = {name: said[name] for name in ("item", "stage", "attempt")} | {"call": call.id}
        return Reply(json.dumps(made), delay=self.delay)
