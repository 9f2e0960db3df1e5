"""What must hold in every schedule, checked against what really happened and not against what was written down."""

from __future__ import annotations

import collections
import json
from collections.abc import Mapping
from typing import Any

from greenlet import GreenletExit

from remand import (
    Context,
    Correction,
    ModelResponse,
    OperationalFailure,
    Produced,
    RetryRequest,
    StructuralFailure,
    Throttled,
    accept,
    reject,
)
from remand_tasks.state.vault import record_key

from .world import EXECUTION_RETRIES, RECOVERIES, RUN, Violation, World

Place = tuple[int, int, int, int]
"""Item, round, stage, attempt."""


class CheckedWorld(World):
    """A world that knows the truth: which calls were made, what each judge said of which candidate."""

    def __init__(self, seed: int, mode: str = "normal", trace: list[str] | None = None) -> None:
        self.candidates: dict[int, Place] = {}
        self.said: dict[int, dict[int, list[str]]] = {}
        self.ended_as: dict[Place, set[str]] = collections.defaultdict(set)
        self.paid: collections.Counter[int] = collections.Counter()
        self.attempts: dict[int, set[Place]] = collections.defaultdict(set)
        self.credits: collections.Counter[int] = collections.Counter()
        self.losses: collections.Counter[int] = collections.Counter()
        self.calls: collections.Counter[tuple[int, int]] = collections.Counter()
        self.closings: collections.Counter[tuple[int, int]] = collections.Counter()
        self.forgotten: set[int] = set()
        self.stopped_at: int | None = None
        super().__init__(seed, mode, trace)
        self.database.watch = self.on_commit
        self.database.watch_value = self.on_value
        self.redis.watch = self.on_record

    # ---------------------------------------------------------------------------------------------------- the die

    def model_call(self, context: Context, correction: Correction | None) -> Any:
        process = self.current()
        row = self.row(context.item)
        place = (context.item, row["round"], row["stage"], context.attempt)
        kinds = ("candidate", "structural", "operational", "throttled", "retry")
        kind = self.dice.choices(kinds, (8, 1, 1, 1, 1))[0]
        self.tell(f"worker {process.worker} MODEL CALL", place, "->", kind)
        if kind != "throttled":
            self._pay(place, process)
        if self.mode == "poison" and context.item == 0:
            self.hub.switch("poison")
        self.yield_to_others("call")
        self.yield_to_others("call")
        self.ended_as[place].add(kind)
        number = self.generations = self.generations + 1
        text = ModelResponse(f"response {number}")
        if kind == "structural":
            raise StructuralFailure("die")
        if kind == "operational":
            raise OperationalFailure("die")
        if kind == "throttled":
            raise Throttled(self.dice.choice((1.0, 3.0, 8.0)))
        self.candidates[number] = place
        self.said[number] = collections.defaultdict(list)
        value = {"candidate": number}
        if kind == "retry":
            guidance = self.dice.choice((None, "guidance"))
            return RetryRequest("die", "for people", value, guidance, text, rank=self.dice.choice((0, 1)))
        return Produced(value, text)

    def _pay(self, place: Place, process: Any) -> None:
        item, _, _, attempt = place
        if attempt > self.plan.retries + 1:
            raise Violation("an attempt over budget")
        self.paid[item] += 1
        self.attempts[item].add(place)
        process.paid = item
        if not self.restored and self.paid[item] > len(self.attempts[item]) + self.credits[item]:
            raise Violation("an extra generation without a lost worker or store")
        if self.stopped_at is not None and process.born > self.stopped_at and not self.restored:
            raise Violation("paid after the run was cancelled or had failed")

    def judge(self, index: int, value: Mapping[str, Any], context: Context) -> Any:
        number = value["candidate"]
        self.calls[(number, index)] += 1
        if self.calls[(number, index)] > 1 + EXECUTION_RETRIES + self.credits[context.item]:
            raise Violation("a validator called over budget")
        verdict = self.dice.choices(("accepted", "rejected", "undetermined"), (6, 2, 2))[0]
        self.tell("JUDGE", index, "candidate", number, "->", verdict)
        self.yield_to_others("call")
        self.current().judged = (number, index, verdict)
        if verdict == "undetermined":
            raise ValueError
        return accept() if verdict == "accepted" else reject("no")

    # ------------------------------------------------------------------------------------------- faults that cost

    def kill(self, worker: int) -> None:
        for process in self.processes:
            if process.worker == worker:
                for token, _owner, validator in process.claims:
                    self.losses[token.seq] += validator is None
                if process.paid is not None:
                    self.credits[process.paid] += 1
        super().kill(worker)

    def flush(self, kind: str) -> None:
        for row in self.rows:
            if self.redis.exists(record_key(RUN, row["seq"])):
                self.credits[row["seq"]] += 1
            if row["fallback"] and kind != "flush_records":
                self.credits[row["seq"]] += 1
            self.losses[row["seq"]] += 1
            if kind == "flush_records":
                # What was said of a candidate is gone with its record; a kept fallback may then be judged anew.
                for number, place in self.candidates.items():
                    if place[0] == row["seq"]:
                        self.forgotten.add(number)
        super().flush(kind)

    def on_record(self, key: bytes, field: bytes, value: bytes) -> None:
        """A record's field is written: a condemned production is a loss, and an extra generation is then allowed."""
        if value in (b"accepted", b"rejected") and field[:1] == b"v":
            number, index, verdict = self.current().judged
            if (index, verdict) != (int(field[1:]), value.decode()) or self.candidates[number][0] != _seq_of(
                key
            ):
                raise Violation("a verdict nobody gave")
            self.said[number][index].append(verdict)
        if value == b"lost" and field == b"p":
            seq = _seq_of(key)
            self.tell("condemned", seq)
            if not self._dead(seq):
                self.losses[seq] += 1
                self.credits[seq] += 1

    def _dead(self, seq: int) -> bool:
        """Whether the claim belonged to a process that was killed, and so was counted then."""
        return not any(
            token.seq == seq and validator is None
            for process in self.processes
            for token, _owner, validator in process.claims
        )

    # ----------------------------------------------------------------------------------------------- what is written

    def on_commit(self, before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> None:
        """An item's row changed in a transaction that was committed."""
        seq = after["seq"]
        if before is None or self.in_restore:
            return
        if after["epoch"] < before["epoch"]:
            raise Violation("an epoch went back")
        self.tell(
            "ROW",
            seq,
            after["state"],
            "epoch",
            after["epoch"],
            "attempt",
            after["attempt"],
            after["status"] or "",
        )
        if before["state"] != "closed" and after["state"] == "closed":
            self._closed(before, after)
        elif after["attempt"] > before["attempt"] and after["stage"] == before["stage"]:
            self._spent(before)
        live = sum(row["state"] in ("waiting", "in_flight") for row in self.rows)
        if live > self.plan.window:
            raise Violation("the window is exceeded")
        if before["state"] == "pending" and after["state"] == "in_flight" and self.run_status != "running":
            raise Violation("admitted after the run stopped")
        if self.run_status != "running" and self.stopped_at is None:
            self.stopped_at = self.step_number
        if after["alone"] and after["state"] == "in_flight":
            alone = sum(row["alone"] and row["state"] == "in_flight" for row in self.rows)
            if alone > 1:
                raise Violation("two that should be alone")

    def _closed(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        seq = after["seq"]
        self.closings[(seq, after["round"])] += 1
        if self.closings[(seq, after["round"])] > 1 and not self.restored:
            raise Violation("closed twice in one round")
        if after["code"] == "recoveries":
            if self.mode == "poison" and seq != 0:
                raise Violation("an innocent item closed with the poisonous one")
            if self.mode in ("normal", "redrive") and self.losses[seq] <= RECOVERIES:
                raise Violation("closed as lost, without that many losses")
        if after["code"] in ("coordinator", "reopens") and not self.faults:
            raise Violation(f"closed as {after['code']} without any fault")

    def _spent(self, before: Mapping[str, Any]) -> None:
        place = (before["seq"], before["round"], before["stage"], before["attempt"])
        if self.restored:
            return
        if self.ended_as[place] & {"structural", "operational", "retry"}:
            return
        judged = [self.said[number] for number, at in self.candidates.items() if at == place]
        if not any("rejected" in verdicts for said in judged for verdicts in said.values()):
            raise Violation("an attempt was spent though nothing failed: a generation for undetermined")

    def on_value(self, row: Mapping[str, Any], stage: int, value: Mapping[str, Any]) -> None:
        """A value was stored: its candidate must be of this place, and every judge must really have accepted it."""
        number = value["candidate"]
        item, of_round, of_stage, _ = self.candidates[number]
        if (item, of_stage) != (row["seq"], stage) or (of_round != row["round"] and not self.restored):
            raise Violation("a candidate of another item, stage or round was used")
        for index in (0, 1):
            said = self.said[number][index]
            if "rejected" in said and number not in self.forgotten:
                raise Violation("a rejected candidate advanced")
            if "accepted" not in said:
                unable = any(name.startswith(f"stage{stage}/") for name in json.loads(row["unable"]))
                if not unable:
                    raise Violation("accepted without every acceptance")


def _seq_of(key: bytes) -> int:
    """The item whose record this is."""
    return int(key.rsplit(b"/", 1)[1].rstrip(b"}"))


__all__ = ["CheckedWorld", "GreenletExit"]
