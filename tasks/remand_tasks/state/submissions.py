"""What people do to runs: begin one, feed it, cancel it, resume it. Each call is one or a few short transactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, bindparam, func, insert, select, update

from remand.errors import RemandError
from remand_policy import RunStatus, Status

from .engine import Database, locked
from .tables import items, payloads, runs

UNFINISHED = (Status.FAILED.value, Status.CANCELLED.value)
"""How items end that `resume` gives another round."""
REDRIVABLE = (*UNFINISHED, Status.REJECTED.value, Status.INCOMPLETE.value)
_NEW_ROUND = {
    "state": "pending",
    "round": items.c.round + 1,
    "status": None,
    "reason": None,
    "disposition": None,
    "code": None,
    "closed_at": None,
    "alone": 0,
}


class RunError(RemandError):
    """Something cannot be done to a run. The text says what and what to do instead."""


@dataclass(frozen=True, slots=True)
class NewItem:
    """An input on its way into the ledger: its key, its JSON text, and the digest of its value."""

    key: str
    text: str
    digest: str


_LAST_SEQ = select(func.max(items.c.seq)).where(items.c.run_id == bindparam("run_id"))
_RUN = locked(select(runs).where(runs.c.id == bindparam("run_id")))
_KNOWN = select(items.c.key).where(
    items.c.run_id == bindparam("run_id"), items.c.key.in_(bindparam("keys", expanding=True))
)
_ADD_ITEMS = insert(items)
_ADD_BODIES = insert(payloads)
_THIS_RUN = update(runs).where(runs.c.id == bindparam("at_run"))
_FED = _THIS_RUN.values(feeder_until=bindparam("feeder_until"))
_INPUT_DONE = _THIS_RUN.values(input_done=1)
_CANCEL = _THIS_RUN.values(status=RunStatus.CANCELLING.value, input_done=1)
_RUN_AGAIN = _THIS_RUN.values(status=RunStatus.RUNNING.value, ended_at=None)


@dataclass(slots=True)
class Submissions:
    """Begins, feeds, cancels and resumes runs in a ledger."""

    database: Database
    feeder_lease: float = 30.0

    def begin(
        self,
        run_id: str,
        *,
        target: str,
        pipeline: str,
        version: str,
        fingerprint: str,
        window: int,
        key_path: str | None,
        reuse: bool,
        now: float,
    ) -> bool:
        """Begin a run, or find it begun. False where it was there with the same fingerprint and key path.

        Raises `RunError` where it was begun with another pipeline: one run never mixes two.
        """
        with self.database.write() as connection:
            done = connection.execute(
                self.database.insert_or_ignore(runs),
                {
                    "id": run_id,
                    "target": target,
                    "pipeline": pipeline,
                    "version": version,
                    "fingerprint": fingerprint,
                    "status": RunStatus.RUNNING.value,
                    "window": window,
                    "key_path": key_path,
                    "reuse": int(reuse),
                    "input_done": 0,
                    "feeder_until": now + self.feeder_lease,
                    "created_at": now,
                },
            )
            if done.rowcount == 1:
                return True
            found = connection.execute(_RUN, {"run_id": run_id}).one()
        if found.fingerprint != fingerprint:
            raise RunError(
                f"run {run_id!r} was begun with another version of its pipeline; begin a new run, "
                "which reuses the checkpoints of the stages that did not change"
            )
        if found.key_path != key_path:
            raise RunError(
                f"run {run_id!r} takes its keys from {found.key_path!r}; say --key {found.key_path}"
            )
        return False

    def feed(self, run_id: str, batch: Sequence[NewItem], now: float) -> int:
        """Add inputs to a run, in order; a key that it has is left as it is. How many were new."""
        with self.database.write() as connection:
            run = connection.execute(_RUN, {"run_id": run_id}).one()
            if run.ended_at is not None:
                raise RunError(f"run {run_id!r} has ended ({run.status}); begin a new one")
            keys = [item.key for item in batch]
            known = set(connection.execute(_KNOWN, {"run_id": run_id, "keys": keys}).scalars())
            last = connection.execute(_LAST_SEQ, {"run_id": run_id}).scalar_one()
            seq = -1 if last is None else last
            rows: list[dict[str, object]] = []
            bodies: list[dict[str, object]] = []
            for item in batch:
                if item.key in known:
                    continue
                known.add(item.key)
                seq += 1
                rows.append(_pending(run_id, seq, item))
                bodies.append({"run_id": run_id, "seq": seq, "name": "input", "body": item.text})
            if rows:
                connection.execute(_ADD_ITEMS, rows)
                connection.execute(_ADD_BODIES, bodies)
            connection.execute(_FED, {"at_run": run_id, "feeder_until": now + self.feeder_lease})
            return len(rows)

    def input_done(self, run_id: str) -> None:
        """No more input will come."""
        with self.database.write() as connection:
            connection.execute(_INPUT_DONE, {"at_run": run_id})

    def cancel(self, run_id: str) -> str:
        """Stop a run: nothing more begins in it. Its status after the call. Raises `RunError` if it is unknown."""
        with self.database.write() as connection:
            run = connection.execute(_RUN, {"run_id": run_id}).first()
            if run is None:
                raise RunError(f"there is no run {run_id!r}")
            if run.status != RunStatus.RUNNING:
                return str(run.status)
            connection.execute(_CANCEL, {"at_run": run_id})
            return RunStatus.CANCELLING.value

    def resume(self, run_id: str, fingerprint: str) -> int:
        """Give failed and cancelled items a new round with fresh budgets, in the same run. How many items that are.

        Raises `RunError` where the run is unknown, is still ending, or was begun with another pipeline.
        """
        return self._reopen(run_id, fingerprint, [items.c.status.in_(UNFINISHED)])

    def redrive(
        self,
        run_id: str,
        fingerprint: str,
        *,
        reasons: Sequence[str] = (),
        dispositions: Sequence[str] = (),
        seqs: Sequence[int] = (),
        preview: bool = False,
    ) -> int:
        """Give chosen items that ended badly a new round: by reason, by disposition, by number, all that are named.

        Accepted items are never chosen. With `preview` nothing is written. How many items it is. Raises `RunError` as
        `resume` does, and where nothing was named.
        """
        if not (reasons or dispositions or seqs):
            raise RunError("name what to redrive: a reason, a disposition or items")
        chosen: list[ColumnElement[bool]] = [items.c.status.in_(REDRIVABLE)]
        if reasons:
            chosen.append(items.c.reason.in_(list(reasons)))
        if dispositions:
            chosen.append(items.c.disposition.in_(list(dispositions)))
        if seqs:
            chosen.append(items.c.seq.in_(list(seqs)))
        return self._reopen(run_id, fingerprint, chosen, preview=preview)

    def _reopen(
        self, run_id: str, fingerprint: str, chosen: Sequence[ColumnElement[bool]], *, preview: bool = False
    ) -> int:
        """closed to pending, epochs kept: what is left over of a former life stays fenced off."""
        where = [items.c.run_id == run_id, items.c.state == "closed", items.c.purged == 0, *chosen]
        with self.database.write() as connection:
            run = connection.execute(_RUN, {"run_id": run_id}).first()
            if run is None:
                raise RunError(f"there is no run {run_id!r}")
            if run.fingerprint != fingerprint:
                raise RunError(
                    f"run {run_id!r} was begun with another version of its pipeline and cannot go on with this one; "
                    "begin a new run, which reuses the checkpoints of the stages that did not change"
                )
            if run.status in (RunStatus.FAILING, RunStatus.CANCELLING):
                raise RunError(
                    f"run {run_id!r} is still ending; wait until `remand status` says that it has ended"
                )
            if preview:
                return connection.execute(select(func.count()).select_from(items).where(*where)).scalar_one()
            again = connection.execute(update(items).where(*where).values(_NEW_ROUND)).rowcount
            connection.execute(_RUN_AGAIN, {"at_run": run_id})
            return again


def _pending(run_id: str, seq: int, item: NewItem) -> dict[str, object]:
    return {
        "run_id": run_id,
        "seq": seq,
        "key": item.key,
        "state": "pending",
        "epoch": 0,
        "since": 0,
        "round": 1,
        "stage": 0,
        "attempt": 1,
        "ask": "",
        "due_at": 0.0,
        "deadline_at": 0.0,
        "correction": "",
        "fallback": "",
        "fallback_codes": "[]",
        "counted": 0,
        "unable": "[]",
        "input_digest": item.digest,
        "previous_digest": "",
        "diagnostics": "[]",
    }
