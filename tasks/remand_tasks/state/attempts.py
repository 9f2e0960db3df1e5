"""The attempt record: what has been claimed, given and judged in one item's current attempt, as small codes.

One Redis hash an item, on the vault's server; each method is one script (`scripts.py`), so a step happens whole or
not at all, and a stale, late or second caller changes nothing. Sealed entries pass through unread. This module never
decides what comes next and never reads a vault entry; a Redis error is raised as it is, for an error is not "missing".

All times are seconds by the Redis server's clock, the only clock here. `owner` names one execution of one task: make
it unique for each (not the Celery task id, which a redelivery shares).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple, cast

import redis
from redis.exceptions import NoScriptError

from remand_policy import Production
from remand_tasks.state import scripts
from remand_tasks.state.vault import record_key, vault_key
from remand_tasks.token import Token

PUBLISHED: Final = frozenset(Production) - {
    Production.LOST,
    Production.GONE,
    Production.NOREC,
    Production.VOID,
}
"""What a producer may publish; the other codes are found, by a pulse or a validator."""

VERDICTS: Final = frozenset({"accepted", "rejected", "undetermined"})
_UNFINISHED: Final = frozenset({"open", "claimed", "candidate"})
_SHORTEST_EXPIRY: Final = 60.0


class Held(StrEnum):
    """What a step finds when it wants to claim its work."""

    CLAIMED = "claimed"
    """The work is now the caller's."""
    DONE = "done"
    """Nothing is left to do here: forward."""
    HELD = "held"
    """Another has it, or it is not this step's turn: stop."""
    STALE = "stale"
    """The record is missing or of another epoch: stop."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of the production. `sealed` holds the wanted vault entries that exist; empty unless claimed."""

    held: Held
    sealed: dict[str, bytes] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class ValidatorClaims:
    """Claims of a group. `indices` are the validators now held; `sealed` has the candidate and what was wanted."""

    held: Held
    indices: tuple[int, ...] = ()
    sealed: dict[str, bytes] = field(default_factory=dict, repr=False)
    candidate: str = ""
    """The candidate's entry name."""


class ValidatorState(NamedTuple):
    """One validator's standing. `tries` counts its claims on this candidate; `detail` is `""` or JSON of codes."""

    state: Literal["open", "claimed", "accepted", "rejected", "undetermined"]
    tries: int
    detail: str


class Record(NamedTuple):
    """A record as it stood at `now` (epoch seconds)."""

    epoch: int
    since: int
    p: str
    candidate: str
    """Entry name of the candidate under judgement, or `""`."""
    starts: int
    facts: dict[str, str]
    validators: tuple[ValidatorState, ...]
    now: float
    present_candidate: bool
    """Whether that entry is in the vault."""

    @property
    def complete(self) -> bool:
        """Whether a coordinator may decide: the production ended without a candidate, or every verdict is in."""
        if self.p == "candidate":
            return all(one.state in VERDICTS for one in self.validators)
        return self.p not in _UNFINISHED


class Look(NamedTuple):
    """What the pulse found."""

    state: Literal["complete", "live", "behind", "ahead", "idle"]
    epoch: int
    """The record's epoch."""
    until: float
    """When live: when the last live claim expires, in epoch seconds; else 0."""
    starts: int
    step: Literal["produce", "validate"]
    """When idle: the first open step."""
    now: float


class Attempts:
    """Every write to attempt records, and the vault writes that belong in the same step."""

    def __init__(self, redis: redis.Redis, *, expiry: float = 90_000) -> None:
        """`redis` must return bytes (`decode_responses=False`). `expiry` is a tombstone's, in seconds."""
        self._redis = redis
        self._expiry = expiry
        self._open = redis.register_script(scripts.OPEN)
        self._claim_production = redis.register_script(scripts.CLAIM_PRODUCTION)
        self._publish = redis.register_script(scripts.PUBLISH)
        self._claim_validators = redis.register_script(scripts.CLAIM_VALIDATORS)
        self._give_verdicts = redis.register_script(scripts.GIVE_VERDICTS)
        self._give_back = redis.register_script(scripts.GIVE_BACK)
        self._renew = redis.register_script(scripts.RENEW)
        self._condemn = redis.register_script(scripts.CONDEMN)
        self._start = redis.register_script(scripts.START)
        self._read = redis.register_script(scripts.READ)
        self._close = redis.register_script(scripts.CLOSE)

    def now(self) -> float:
        """The Redis server's time, in epoch seconds."""
        seconds, micros = self._redis.time()
        return seconds + micros / 1e6

    def open(
        self,
        token: Token,
        *,
        since: int,
        validators: int,
        ask: Sequence[int] = (),
        expiry: float,
        fallback: str | None = None,
    ) -> bool:
        """Bring the record to the token's epoch. False when it is there or beyond already.

        A candidate that is still in the vault is kept with its verdicts if `since` and the number of validators are
        the record's (and, with `fallback`, if it is that entry): claims left over become undetermined, and of the
        undetermined those in `ask` are open again with their tries. Otherwise the record starts empty, or with
        `fallback` as the candidate to be judged, or as `gone` if that entry is missing. `expiry`: see `publish`.
        """
        return bool(
            self._open(
                _keys(token),
                [token.epoch, since, validators, _expiry(expiry), fallback or "", *ask],
            )
        )

    def claim_production(
        self, token: Token, owner: str, *, lease: float, hard: float, wanted: Sequence[str] = ()
    ) -> Claim:
        """Claim the producer's work for `lease` seconds, renewable until `hard` seconds from now.

        `wanted` names vault entries to bring along. An expired claim is not taken over: a pulse condemns it.
        """
        answer = self._claim_production(
            _keys(token), [token.epoch, owner, _milliseconds(lease), _milliseconds(hard), *wanted]
        )
        held = Held(answer[0].decode())
        return Claim(held, _named(wanted, answer[1])) if held is Held.CLAIMED else Claim(held)

    def publish(
        self,
        token: Token,
        owner: str,
        production: str,
        *,
        facts: Mapping[str, str],
        entries: Mapping[str, bytes],
        candidate: str | None,
        drop: Sequence[str] = (),
        expiry: float,
    ) -> bool:
        """Write what the producer gave: code, facts and sealed entries in one step. False when refused.

        It is refused once the claim is condemned or another's, and accepted when the claim is merely expired.
        `drop` names entries that this response supersedes. `expiry`, in seconds, goes to record and vault alike; less
        than a minute counts as a minute, so that an overdue item can still be decided.

        :raises ValueError: for a code no producer gives, or a candidate's name without a candidate.
        """
        if production not in PUBLISHED:
            raise ValueError("not a code that a producer can publish")
        if bool(candidate) != (production == Production.CANDIDATE):
            raise ValueError("a candidate's entry name belongs to the code 'candidate', and to no other")
        arguments: list[Any] = [token.epoch, owner, str(production), candidate or "", _expiry(expiry)]
        arguments += [len(facts), len(entries)]
        for pairs in (facts.items(), entries.items()):
            for name, value in pairs:
                arguments += [name, value]
        return bool(self._publish(_keys(token), [*arguments, *drop]))

    def claim_validators(
        self,
        token: Token,
        owner: str,
        indices: Sequence[int],
        *,
        lease: float,
        hard: float,
        wanted: Sequence[str] = (),
    ) -> ValidatorClaims:
        """Claim those of a group that are open, each with one more try; none if another holds one of the group.

        `lease` and `hard` are seconds from now for the whole group. A candidate that has left the vault is marked
        `gone`, and the step is done. `wanted` names more vault entries to bring along.

        :raises redis.ResponseError: when the record has no validator of such an index.
        """
        answer = self._claim_validators(
            _keys(token),
            [token.epoch, owner, _milliseconds(lease), _milliseconds(hard), len(indices), *indices, *wanted],
        )
        held = Held(answer[0].decode())
        if held is not Held.CLAIMED:
            return ValidatorClaims(held)
        candidate = answer[1].decode()
        sealed = _named(wanted, answer[4]) | {candidate: answer[3]}
        return ValidatorClaims(held, tuple(map(int, answer[2])), sealed, candidate)

    def give_verdicts(
        self,
        token: Token,
        owner: str,
        verdicts: Mapping[int, tuple[str, str]],
        *,
        entries: Mapping[int, tuple[str, bytes]] | None = None,
        expiry: float,
    ) -> tuple[int, ...]:
        """Write verdicts as (state, detail), and return the indices that were accepted.

        One is refused when its claim is condemned or another's, and then its findings are not written either.
        `entries` has the sealed findings of a validator i as (name, bytes), the name starting with `find.i`.

        :raises ValueError: for a state that is no verdict, or findings under another validator's name or without
            its verdict.
        """
        entries = entries or {}
        if not entries.keys() <= verdicts.keys():
            raise ValueError("findings without a verdict")
        arguments: list[Any] = [token.epoch, owner, _expiry(expiry)]
        for index, (state, detail) in verdicts.items():
            if state not in VERDICTS:
                raise ValueError("not a verdict")
            name, sealed = entries.get(index, ("", b""))
            if name and re.match(rf"find\.{index}(?![0-9])", name) is None:
                raise ValueError(f"findings of validator {index} must be under 'find.{index}'")
            arguments += [index, str(state), detail, name, sealed]
        return tuple(map(int, self._give_verdicts(_keys(token), arguments)))

    def give_back(
        self,
        token: Token,
        owner: str,
        validator: int | None,
        *,
        drop: Sequence[str] = (),
        most: int = 8,
    ) -> bool:
        """Undo a claim under which nothing was called or paid for: the work is open again, the try uncounted.

        `validator` is `None` for the production. `drop` names vault entries that are of no use to anybody. False,
        and nothing is done, when the claim is no longer the owner's or this epoch has seen `most` of these: work that
        nobody can do must come to an end.
        """
        index = "" if validator is None else validator
        return bool(self._give_back(_keys(token), [token.epoch, owner, index, most, *drop]))

    def renew(self, claims: Iterable[tuple[Token, str, int | None]], *, lease: float) -> list[bool]:
        """Renew claims of (token, owner, validator or None for the production) in one round trip.

        Each is moved to `lease` seconds from now, at most to its hard end. False, in the same order, for a claim that
        is no longer the owner's, has expired, or is past its hard end: its work may be condemned at any time.
        """
        calls = [
            (*_keys(token), token.epoch, owner, _milliseconds(lease), "" if index is None else index)
            for token, owner, index in claims
        ]
        if not calls:
            return []
        answers = self._renew_all(calls)
        if any(isinstance(answer, NoScriptError) for answer in answers):
            # A server that forgot its scripts. Renewing again those that came through is harmless.
            self._redis.script_load(scripts.RENEW)
            answers = self._renew_all(calls)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return [bool(answer) for answer in answers]

    def _renew_all(self, calls: Sequence[tuple[str | int, ...]]) -> list[object]:
        with self._redis.pipeline(transaction=False) as pipe:
            for call in calls:
                pipe.evalsha(self._renew.sha, 2, *call)
            return cast("list[object]", pipe.execute(raise_on_error=False))

    def condemn(self, token: Token, *, running: bool) -> Look:
        """End what is dead and say what stands. Only the pulse calls this.

        No record: a tombstone (`norec`) in its place. An expired claim: the production is `lost`, a validator is
        undetermined. `running` false, for the run: a production nobody began is `void`. A record of another epoch is
        left alone.
        """
        state, epoch, until, starts, step, now = self._condemn(
            _keys(token), [token.epoch, int(running), _milliseconds(self._expiry)]
        )
        return Look(state.decode(), int(epoch), until / 1000, int(starts), step.decode(), now / 1000)

    def start(self, token: Token) -> int:
        """Count one more coordinator that began on this epoch. Returns the count, 0 for a stale token."""
        return int(self._start(_keys(token), [token.epoch]))

    def read(self, run: str, seq: int) -> Record | None:
        """The record as one snapshot, or `None` if there is none."""
        answer = self._read([record_key(run, seq), vault_key(run, seq)])
        if answer is None:
            return None
        now, present, flat = answer
        pairs = map(bytes.decode, flat)
        fields = dict(zip(pairs, pairs, strict=True))
        return Record(
            epoch=int(fields["epoch"]),
            since=int(fields["since"]),
            p=fields["p"],
            candidate=fields["cand"],
            starts=int(fields["starts"]),
            facts={name[2:]: value for name, value in fields.items() if name.startswith("f:")},
            validators=tuple(_validator(fields, i) for i in range(int(fields["n"]))),
            now=now / 1000,
            present_candidate=bool(present),
        )

    def close(
        self,
        run: str,
        seq: int,
        epoch: int,
        *,
        retain: Sequence[str] = (),
        retain_for: float | None = None,
    ) -> bool:
        """Delete a closed item's record and vault entries. False when the record is of a later epoch.

        With `retain`, those entries stay for `retain_for` seconds.

        :raises ValueError: for entries to retain without a positive time.
        """
        if retain and not (retain_for and retain_for > 0):
            raise ValueError("what is retained needs a time after which it goes")
        kept_for = _milliseconds(retain_for or 0)
        return bool(self._close([record_key(run, seq), vault_key(run, seq)], [epoch, kept_for, *retain]))


def _keys(token: Token) -> tuple[str, str]:
    return record_key(token.run, token.seq), vault_key(token.run, token.seq)


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _expiry(seconds: float) -> int:
    return _milliseconds(max(seconds, _SHORTEST_EXPIRY))


def _named(names: Sequence[str], values: Sequence[bytes | None]) -> dict[str, bytes]:
    return {name: sealed for name, sealed in zip(names, values, strict=True) if sealed is not None}


def _validator(fields: Mapping[str, str], i: int) -> ValidatorState:
    return ValidatorState(
        cast("Literal['open', 'claimed', 'accepted', 'rejected', 'undetermined']", fields[f"v{i}"]),
        int(fields[f"t{i}"]),
        fields.get(f"e{i}", ""),
    )
