"""The model's side of the story: what it replies to each item, the provider's error texts included."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter

from remand.testing import RecordedRequest, Reply, ScriptedModel
from remand_workers.surfaces import Kind

from .pipeline import CHAT_TIMEOUT
from .texts import planted

_TAG = re.compile(r"\[\[(\w+)\]\]")


def _value(do: str, kind: Kind) -> str:
    answer = json.dumps({"do": do, "note": planted(kind, do)})
    return f"{planted(Kind.RESPONSE, 'thinking aloud')}: {answer}"


def _judgement(do: str) -> str:
    finding = {"text": planted(Kind.JUDGEMENT, do), "path": "note"}
    return json.dumps({"verdict": "rejected", "findings": [finding]})


class Model:
    """A scripted model that replies by an item's `do`, and remembers every request that it was sent."""

    def __init__(self) -> None:
        self.server = ScriptedModel(self._reply)
        self._lock = threading.Lock()
        self._asked: Counter[tuple[str, str]] = Counter()

    def requests(self) -> bytes:
        """All requests so far."""
        return "\n".join(json.dumps(each.body) for each in self.server.requests).encode()

    def _reply(self, request: RecordedRequest) -> Reply:
        found = _TAG.search(json.dumps(request.messages)) or re.search(
            r'"do\\*": \\*"(\w+)', json.dumps(request.messages)
        )
        assert found is not None
        do, judges = found[1], request.body["model"] == "judge"
        with self._lock:
            self._asked[do, request.body["model"]] += 1
            times = self._asked[do, request.body["model"]]
        return self._judged(do, times) if judges else self._said(do, times)

    def _judged(self, do: str, times: int) -> Reply:
        if do == "judge_broken":
            return Reply(planted(Kind.JUDGEMENT, "no verdict"))
        if do == "judge_rejects" and times == 1:
            return Reply(_judgement(do))
        return Reply('{"verdict": "accepted", "findings": []}')

    def _said(self, do: str, times: int) -> Reply:
        first = times == 1
        match do:
            case "hopeless":
                return Reply(_value(do, Kind.CANDIDATE))
            case "corrected" | "judge_rejects" if first:
                return Reply(_value(do, Kind.CANDIDATE))
            case "structural":
                return Reply(planted(Kind.RESPONSE, "no JSON at all {"))
            case "repaired" if first:
                return Reply('{"do": 1, "note": ["' + planted(Kind.CANDIDATE, do) + '"]}')
            case "slow" if first:
                return Reply(_value(do, Kind.VALUE), delay=CHAT_TIMEOUT + 30)
            case "throttled" if first:
                return Reply(planted(Kind.EXCEPTION, do), status=429, headers={"retry-after": "0.1"})
            case "server_error" if first:
                return Reply(planted(Kind.EXCEPTION, do), status=500)
            case "kill" if first:
                return Reply(_value(do, Kind.VALUE), delay=2)
            case "cancelled":
                return Reply(_value(do, Kind.VALUE), delay=1.5)
        return Reply(_value(do, Kind.VALUE))
