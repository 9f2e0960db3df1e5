"""Named fault points for the chaos tests: where a worker may die, freeze or break, said in its environment.

The steps call `point(NAME)` before and after everything that another process, a database or a server can see. Nothing
is armed unless `REMAND_FAULTS` is set, and then this module says so loudly; unarmed, a point is one comparison. It
refuses to act on names that are not in `POINTS`, so that a test cannot arm a point that nobody passes.

`REMAND_FAULTS` holds rules, `;` between them: `POINT=ACTION`, the action followed by any of

| part | means |
|---|---|
| `@0.05` | with this probability each time |
| `#3` | the third time in this process, and no other |
| `*5` | five times in all, over all processes that share `REMAND_FAULTS_ONCE_DIR`; without it, in this one |

The actions are `kill` (SIGKILL to itself), `stop:2.0` (SIGSTOP; whoever reads the folder continues it after so many
seconds), `raise` (`InjectedFault`), and for the point `send` alone `double` and `drop`: every task message, links of
chains included, is published twice, or not at all.

With `REMAND_FAULTS_ONCE_DIR`, each fault first leaves a file `POINT.NUMBER` there, with the process id and the action;
a rule without `*` then happens once. `REMAND_FAULTS_CLOCK=900` puts this process's wall clock fifteen minutes forward
(`time.time`, of which every clock in Celery and kombu is made): import this module before anything that takes
`time.time` by name. No monotonic clock is touched.
"""

from __future__ import annotations

import logging
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from remand.errors import RemandError

log = logging.getLogger("remand.faults")

POINTS: Final[Mapping[str, str]] = {
    "produce.begun": "the message is taken, nothing is read",
    "produce.checked": "the ledger agrees, nothing is claimed",
    "produce.claimed": "the production is claimed, the model is not asked",
    "produce.called": "the model has answered, nothing is published",
    "produce.published": "the candidate is in the vault, nothing is forwarded",
    "validate.begun": "the message is taken, nothing is read",
    "validate.checked": "the ledger agrees, nothing is claimed",
    "validate.claimed": "a validator is claimed, it is not asked",
    "validate.judged": "it has judged, nothing is written",
    "validate.written": "its verdict is written, the next one is not begun",
    "coordinate.begun": "the message is taken, nothing is read",
    "coordinate.read": "the record is read and complete, the start is not counted",
    "coordinate.counted": "the start is counted, nothing is decided",
    "coordinate.decided": "the decision is made, no transaction is begun",
    "coordinate.committing": "all is written in a transaction that is not committed",
    "coordinate.committed": "the transaction is committed, nothing is opened",
    "dispatch.opening": "something is owed, its record is not opened",
    "dispatch.opened": "the record is opened, nothing is sent",
    "send.begun": "a chain is made, it is not published",
    "send.done": "its first message is published",
    "close.begun": "the item is closed, its record and texts are still there",
    "close.deleted": "record and texts are deleted",
    "step.returned": "a step is done, the chain's next message is not out",
    "step.forwarded": "the next message is out, this one is not acknowledged",
    "pulse.begun": "a row is due, nobody has looked at its record",
    "pulse.condemned": "its record was looked at and what was dead in it is condemned",
    "pulse.pushed": "the row is put off, nothing is sent",
    "pulse.woken": "a waiting row is in flight, its record is not opened",
    "pulse.admitting": "a run may have room, nothing is admitted",
    "pulse.admitted": "rows are admitted, none is opened",
    "pulse.cancelled": "a batch of a run that ends is cancelled",
    "pulse.ending": "a run may be done, nothing is written",
    "pulse.ended": "a run has ended, its vault prefix is not swept",
    "pulse.swept": "its vault prefix is swept",
    "pulse.registry": "a registry is due and put off, nobody is told",
    "reconcile.claimed": "a planner has the registry, nothing is read",
    "reconcile.fed": "a run's accepted values are entries",
    "reconcile.exact": "equal exact keys are joined, no block is planned",
    "reconcile.planned": "the round's run is in the ledger, the job does not name it",
    "reconcile.begun": "the job names it",
    "reconcile.applying": "a block is applied in a transaction that is not committed",
    "reconcile.applied": "a block is applied, the next one is not looked at",
    "reconcile.ended": "the job has ended",
    "intake.recorded": "a message of another system is in the ledger, it is not acknowledged",
    "send": "any task message on its way to the broker (`double` and `drop` alone)",
}
"""Every point, and how things stand when it is passed."""

_RULE: Final = re.compile(
    r"(?P<point>[a-z.]+)=(?P<action>kill|raise|double|drop|stop:(?P<seconds>[0-9.]+))"
    r"(?:@(?P<chance>[0-9.]+)|#(?P<nth>[0-9]+)|\*(?P<times>[0-9]+))*"
)


class InjectedFault(RemandError):
    """Raised at an armed fault point, in tests. `point` is its name."""

    def __init__(self, point: str) -> None:
        super().__init__(point)
        self.point = point


class BadFaults(RemandError):
    """`REMAND_FAULTS` cannot be read. `rule` is the part that is wrong."""

    def __init__(self, rule: str) -> None:
        super().__init__(rule)
        self.rule = rule

    def __str__(self) -> str:
        return f"REMAND_FAULTS: {self.rule!r} is no rule, or names no fault point"


@dataclass(slots=True)
class _Rule:
    point: str
    action: str
    chance: float = 1.0
    nth: int | None = None
    times: int | None = None
    passed: int = 0
    happened: int = 0


@dataclass(slots=True)
class _Plan:
    rules: dict[str, _Rule]
    folder: Path | None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def strikes(self, name: str) -> _Rule | None:
        """The rule of a point, if its fault is to happen now; its file is written by then."""
        if name not in POINTS:
            raise BadFaults(name)
        rule = self.rules.get(name)
        if rule is None:
            return None
        with self.lock:
            rule.passed += 1
            if rule.nth is not None and rule.passed != rule.nth:
                return None
            if rule.chance < 1.0 and random.random() >= rule.chance:  # noqa: S311 - tests only
                return None
            return rule if self._takes_turn(rule) else None

    def _takes_turn(self, rule: _Rule) -> bool:
        if rule.times is not None and rule.happened >= rule.times:
            return False
        if self.folder is not None and rule.times is not None:
            said = f"{os.getpid()} {rule.action}\n".encode()
            for number in range(rule.times):
                path = self.folder / f"{rule.point}.{number}"
                try:
                    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                except FileExistsError:
                    continue
                os.write(descriptor, said)
                os.close(descriptor)
                break
            else:
                return False
        rule.happened += 1
        return True

    def act(self, name: str) -> None:
        rule = self.strikes(name)
        if rule is None:
            return
        if rule.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif rule.action == "raise":
            raise InjectedFault(name)
        elif rule.action.startswith("stop"):
            os.kill(os.getpid(), signal.SIGSTOP)


_plan: _Plan | None = None


def point(name: str) -> None:
    """Pass a fault point. Raises `InjectedFault` where a test armed it so."""
    if _plan is not None:
        _plan.act(name)


def armed() -> bool:
    """Whether any fault may happen in this process."""
    return _plan is not None


def sender(send: Callable[..., Any]) -> Callable[..., Any]:
    """Celery's sender of task messages, wrapped so that the point `send` can double or drop a message of ours."""
    if _plan is None or "send" not in _plan.rules:
        return send
    plan = _plan

    def faulty(producer: Any, name: str, message: Any, **options: Any) -> Any:
        rule = plan.strikes("send") if name.startswith("remand.") else None
        if rule is not None and rule.action == "drop":
            return None
        if rule is not None:
            send(producer, name, message, **options)
        return send(producer, name, message, **options)

    return faulty


def arm(environment: Mapping[str, str]) -> None:
    """Arm what `environment` says, or disarm. Called on import; again in a process that was forked with another one.

    Raises `BadFaults`.
    """
    global _plan
    text, folder = environment.get("REMAND_FAULTS", ""), environment.get("REMAND_FAULTS_ONCE_DIR")
    rules = [_parse(part, once=folder is not None) for part in text.split(";") if part.strip()]
    _plan = (
        _Plan({rule.point: rule for rule in rules}, Path(folder) if folder is not None else None)
        if rules
        else None
    )
    if _plan is not None:
        log.warning("fault injection is armed: %s", text)


def _parse(text: str, *, once: bool) -> _Rule:
    found = _RULE.fullmatch(text.strip())
    if found is None or found["point"] not in POINTS:
        raise BadFaults(text.strip())
    about_messages = found["action"] in ("double", "drop")
    if about_messages != (found["point"] == "send"):
        raise BadFaults(text.strip())
    times = int(found["times"]) if found["times"] else 1 if once and not about_messages else None
    return _Rule(
        point=found["point"],
        action=found["action"],
        chance=float(found["chance"]) if found["chance"] else 1.0,
        nth=int(found["nth"]) if found["nth"] else None,
        times=times,
    )


def shift_clock(seconds: float) -> None:
    """Put this process's wall clock so many seconds forward, for everyone who asks `time` from now on."""
    true, true_ns = time.time, time.time_ns
    time.time = lambda: true() + seconds
    time.time_ns = lambda: true_ns() + round(seconds * 1e9)
    log.warning("fault injection has moved the clock of this process by %g seconds", seconds)


arm(os.environ)
if os.environ.get("REMAND_FAULTS_CLOCK"):
    shift_clock(float(os.environ["REMAND_FAULTS_CLOCK"]))
