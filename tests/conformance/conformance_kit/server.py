"""One model server for all scenarios: a request names its case and item, and the case's script answers it."""

from __future__ import annotations

import json
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from remand.testing import RecordedRequest, Reply, ScriptedModel

JUDGE = "judge"
"""The model name that judges ask for; its requests have a script and a log of their own."""

_TAG = re.compile(r"\[\[([\w-]+)/(\d+)\]\]")


def tag(case: str, item: int) -> str:
    """What a prompt must hold so that the request finds its script."""
    return f"[[{case}/{item}]]"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One chat request of one item, and the reply it was given."""

    item: int
    request: RecordedRequest = field(repr=False)
    reply: Reply = field(repr=False)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages that were sent."""
        return self.request.messages

    @property
    def text(self) -> str:
        """The whole request body as text."""
        return json.dumps(self.request.body, ensure_ascii=False)

    @property
    def generation(self) -> bool:
        """Whether the model answered or failed on it."""
        return self.reply.status != 429


Answers = Sequence[Any] | Callable[[RecordedRequest, int, int], Any]
"""Replies in order for each item, the last repeats; or a function of request, item and number of the request."""


@dataclass(slots=True)
class Script:
    """How the model and the judge answer in one case."""

    replies: Answers = ()
    by_item: Mapping[int, Answers] = field(default_factory=dict)
    judge: Answers = ()


class Server:
    """A scripted model shared by every case of a session. Used as a context manager."""

    def __init__(self) -> None:
        self.model = ScriptedModel(self._reply, keep=1)
        self._lock = threading.Lock()
        self._scripts: dict[str, Script] = {}
        self._asked: dict[tuple[str, int, str], int] = defaultdict(int)
        self._log: dict[str, list[Exchange]] = defaultdict(list)

    def __enter__(self) -> Server:
        self.model.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.model.close()

    def script(self, case: str, script: Script) -> None:
        """Answer the requests of `case` so from now on, from the beginning of the script."""
        with self._lock:
            self._scripts[case] = script
            for key in [key for key in self._asked if key[0] == case]:
                del self._asked[key]

    def log(self, case: str) -> list[Exchange]:
        """The exchanges with the producers of `case`, oldest first."""
        with self._lock:
            return list(self._log[case])

    def judged(self, case: str) -> list[Exchange]:
        """The exchanges with the judges of `case`."""
        return self.log(f"{case}/{JUDGE}")

    def _reply(self, request: RecordedRequest) -> Reply:
        found = _TAG.search(json.dumps(request.messages))
        if found is None:
            return Reply("no case is named", status=404)
        case, item = found[1], int(found[2])
        model = request.body["model"]
        with self._lock:
            script = self._scripts[case]
            place = self._asked[case, item, model]
            self._asked[case, item, model] += 1
        answers = script.judge if model == JUDGE else script.by_item.get(item, script.replies)
        given = answers(request, item, place) if callable(answers) else answers[min(place, len(answers) - 1)]
        if not isinstance(given, Reply):
            given = Reply(given if isinstance(given, str) else json.dumps(given, ensure_ascii=False))
        with self._lock:
            self._log[f"{case}/{JUDGE}" if model == JUDGE else case].append(Exchange(item, request, given))
        return given
