"""Attempts against a model of the protocol's table in plain Python: seeded walks of steps, delays and losses.

Each step is compared by what it returned, by the record it left and by the vault it left. The weights keep a walk in
the interesting states; a failure names its seed and its last steps.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import redis

from remand_tasks.state.attempts import Attempts, Held
from remand_tasks.state.vault import record_key, vault_key
from remand_tasks.token import Token

N = 2
# Time moves in steps of 20 s, and every expiry lies 15 s beyond such a step: real milliseconds never matter.
STEP, LEASE, HARD = 20, 35, 115
VERDICTS = ("accepted", "rejected", "undetermined", "undetermined")
ENDS = ("candidate", "candidate", "candidate", "candidate", "throttled")
GROUPS = ((0,), (1,), (0, 1), (0, 1))
LOST = '{"code":"lost"}'


class Model:
    """The record as the protocol's table describes it."""

    def __init__(self, epoch: int, since: int, p: str = "open", n: int = N, cand: str = "") -> None:
        self.epoch, self.since, self.p, self.cand, self.starts = epoch, since, p, cand, 0
        self.claim: tuple[str, int, int] | None = None
        self.v: list[tuple[str, int, str]] = [("open", 0, "")] * n
        self.held: dict[int, tuple[str, int, int]] = {}

    @property
    def complete(self) -> bool:
        if self.p == "candidate":
            return all(state in VERDICTS for state, _, _ in self.v)
        return self.p not in {"open", "claimed"}


class Walk:
    """One item, its ledger's epoch, and whoever comes along."""

    def __init__(self, client: redis.Redis, seed: int) -> None:
        self.client, self.attempts, self.random = client, Attempts(client), random.Random(seed)
        self.now, self.epoch, self.since, self.count = 0, 1, 1, 0
        self.model: Model | None = None
        self.vault: set[str] = set()
        self.owners = ["nobody"]
        self.seen: Counter[str] = Counter()

    def step(self) -> str:
        """Take one step and compare."""
        weights = {
            self.opens: 2,
            self.claims_production: 5,
            self.publishes: 4,
            self.claims_validators: 6,
            self.gives_verdicts: 5,
            self.renews: 4,
            self.condemns: 3,
            self.starts: 1,
            self.time_passes: 3,
            self.loses: 0.8,
            self.keeps_an_old_candidate: 0.5,
            self.closes: 0.3,
        }
        chosen = self.random.choices(list(weights), list(weights.values()))[0]
        chosen()
        self.agrees()
        return chosen.__name__

    # who and what

    def anyone(self) -> tuple[str, int | None]:
        """An owner and what it holds: mostly one that really holds it."""
        held: list[tuple[str, int | None]] = []
        if self.model is not None:
            held = [(claim[0], i) for i, claim in self.model.held.items()]
            held += [(self.model.claim[0], None)] if self.model.claim else []
        if held and self.random.random() < 0.8:
            return self.random.choice(held)
        return self.random.choice(self.owners[-4:]), self.random.choice((None, 0, 1))

    def newcomer(self) -> str:
        self.count += 1
        self.owners.append(f"o{self.count}")
        return self.owners[-1]

    def token(self) -> tuple[Token, Model | None]:
        """The ledger's token, seldom one too old or too new, and the record if it is of that epoch."""
        epoch = self.epoch + self.random.choices((0, -1, 1), (12, 1, 1))[0]
        mine = self.model is not None and self.model.epoch == epoch
        return Token("r", 1, 1, 1, epoch), self.model if mine else None

    def saw(self, what: str, result: object) -> None:
        self.seen[f"{what} {result}"] += 1

    # steps

    def opens(self) -> None:
        if self.random.random() < 0.9:
            self.epoch += 1
        if self.random.random() < 0.4:
            self.since = self.epoch
        ask = [i for i in range(N) if self.random.random() < 0.5]
        fallback = self.random.choice((None, None, None, "cand.old"))
        token, _ = self.token()
        old = self.model
        given = self.attempts.open(
            token, since=self.since, validators=N, ask=ask, expiry=900, fallback=fallback
        )
        assert given == (old is None or old.epoch < token.epoch)
        if not given:
            return
        kept = old is not None and old.p == "candidate" and old.since == self.since and old.cand in self.vault
        if kept and old is not None and fallback in (None, old.cand):
            self.saw("open", "kept")
            for i in old.held:
                old.v[i] = ("undetermined", old.v[i][1], LOST)
            old.held = {}
            for i in ask:
                if old.v[i][0] == "undetermined":
                    old.v[i] = ("open", old.v[i][1], "")
            old.epoch, old.starts = token.epoch, 0
        elif fallback is None:
            self.model = Model(token.epoch, self.since)
        elif fallback in self.vault:
            self.saw("open", "fallback")
            self.model = Model(token.epoch, self.since, "candidate", cand=fallback)
        else:
            self.model = Model(token.epoch, self.since, "gone")

    def claims_production(self) -> None:
        owner, (token, model) = self.newcomer(), self.token()
        held = self.attempts.claim_production(token, owner, lease=LEASE, hard=HARD).held
        self.saw("claim_production", held)
        if model is None:
            assert held is Held.STALE
        elif model.p == "open":
            assert held is Held.CLAIMED
            model.p, model.claim = "claimed", (owner, self.now + LEASE, self.now + HARD)
        else:
            assert held is (Held.HELD if model.p == "claimed" else Held.DONE)

    def publishes(self) -> None:
        owner, (token, model) = self.anyone()[0], self.token()
        production = self.random.choice(ENDS)
        self.count += 1
        name = f"cand.{self.count}" if production == "candidate" else None
        entries = {name: b"sealed"} if name else {}
        given = self.attempts.publish(
            token, owner, production, facts={}, entries=entries, candidate=name, expiry=900
        )
        self.saw("publish", given)
        assert given == (model is not None and model.claim is not None and model.claim[0] == owner)
        if given and model is not None:
            model.p, model.cand, model.claim = production, name or "", None
            self.vault |= entries.keys()

    def claims_validators(self) -> None:
        owner, (token, model), group = self.newcomer(), self.token(), self.random.choice(GROUPS)
        claims = self.attempts.claim_validators(token, owner, group, lease=LEASE, hard=HARD)
        self.saw("claim_validators", claims.held)
        if model is None:
            assert claims.held is Held.STALE
        elif model.p in {"open", "claimed"}:
            assert claims.held is Held.HELD
        elif model.p != "candidate":
            assert claims.held is Held.DONE
        elif model.cand not in self.vault:
            assert claims.held is Held.DONE
            self.saw("claim_validators", "gone")
            model.p = "gone"
        elif any(i in model.held for i in group):
            assert claims.held is Held.HELD
        else:
            mine = tuple(i for i in group if model.v[i][0] == "open")
            assert (claims.held, claims.indices) == (Held.CLAIMED if mine else Held.DONE, mine)
            for i in mine:
                model.held[i] = (owner, self.now + LEASE, self.now + HARD)
                model.v[i] = ("claimed", model.v[i][1] + 1, "")

    def gives_verdicts(self) -> None:
        owner, (token, model), group = self.anyone()[0], self.token(), self.random.choice((*GROUPS, (0, 1)))
        verdict = self.random.choice(VERDICTS)
        given = self.attempts.give_verdicts(
            token,
            owner,
            dict.fromkeys(group, (verdict, "{}")),
            entries={i: (f"find.{i}", b"sealed") for i in group},
            expiry=900,
        )
        self.saw("give_verdicts", len(given))
        wanted = () if model is None else tuple(i for i in group if model.held.get(i, ("",))[0] == owner)
        assert given == wanted
        for i in wanted:
            assert model is not None
            del model.held[i]
            model.v[i] = (verdict, model.v[i][1], "{}")
            self.vault.add(f"find.{i}")

    def renews(self) -> None:
        (owner, index), (token, model) = self.anyone(), self.token()
        given = self.attempts.renew([(token, owner, index)], lease=LEASE)[0]
        self.saw("renew", given)
        claim = None if model is None else model.claim if index is None else model.held.get(index)
        wanted = claim is not None and claim[0] == owner and claim[1] >= self.now and claim[2] > self.now
        assert given == wanted
        if wanted and claim is not None and model is not None:
            moved = (owner, min(self.now + LEASE, claim[2]), claim[2])
            if index is None:
                model.claim = moved
            else:
                model.held[index] = moved

    def condemns(self) -> None:
        (token, _), running = self.token(), self.random.random() < 0.8
        look = self.attempts.condemn(token, running=running)
        self.saw("condemn", look.state)
        if self.model is None:
            self.model = Model(token.epoch, token.epoch, "norec", n=0)
        model = self.model
        assert (look.epoch, look.starts) == (model.epoch, model.starts)
        if model.epoch != token.epoch:
            assert look.state == ("behind" if model.epoch < token.epoch else "ahead")
            return
        if model.claim is not None and model.claim[1] < self.now:
            model.p, model.claim = "lost", None
        for i, (_, exp, _) in list(model.held.items()):
            if exp < self.now:
                model.v[i] = ("undetermined", model.v[i][1], LOST)
                del model.held[i]
        if model.p == "open" and not running:
            model.p = "void"
        live = [model.claim[1]] if model.claim else [exp for _, exp, _ in model.held.values()]
        if model.complete:
            assert look.state == "complete"
        elif live:
            assert look.state == "live"
            assert abs((look.until - look.now) - (max(live) - self.now)) < STEP / 2
        else:
            assert (look.state, look.step) == ("idle", "produce" if model.p == "open" else "validate")

    def starts(self) -> None:
        token, model = self.token()
        if model is not None:
            model.starts += 1
        assert self.attempts.start(token) == (model.starts if model else 0)

    def time_passes(self) -> None:
        self.now += STEP
        for field, value in self.client.hgetall(record_key("r", 1)).items():
            if field in (b"exp", b"hard") or (field[:1] in b"xh" and field[1:].isdigit()):
                self.client.hset(record_key("r", 1), field, int(value) - STEP * 1000)

    def loses(self) -> None:
        if self.random.random() < 0.2:
            self.client.flushdb()
            self.model, self.vault = None, set()
        elif self.vault:
            name = self.random.choice(sorted(self.vault))
            if self.model is not None and self.model.cand in self.vault and self.random.random() < 0.7:
                name = self.model.cand
            self.client.hdel(vault_key("r", 1), name)
            self.vault.discard(name)

    def keeps_an_old_candidate(self) -> None:
        self.client.hset(vault_key("r", 1), "cand.old", "sealed")
        self.client.expire(vault_key("r", 1), 900)
        self.vault.add("cand.old")

    def closes(self) -> None:
        token, _ = self.token()
        given = self.attempts.close("r", 1, token.epoch)
        self.saw("close", given)
        assert given == (self.model is None or self.model.epoch <= token.epoch)
        if given:
            self.model, self.vault = None, set()

    def agrees(self) -> None:
        found, model = self.attempts.read("r", 1), self.model
        assert (found is None) == (model is None)
        if found is not None and model is not None:
            shown: tuple[Any, ...] = (found.epoch, found.since, found.p, found.candidate, found.starts)
            assert shown == (model.epoch, model.since, model.p, model.cand, model.starts)
            assert [(one.state, one.tries, one.detail) for one in found.validators] == model.v
            assert (found.complete, found.present_candidate) == (model.complete, model.cand in self.vault)
        assert {name.decode() for name in self.client.hkeys(vault_key("r", 1))} == self.vault
        assert all(self.client.pttl(key) > 0 for key in self.client.scan_iter())


MUST_BE_SEEN = [
    *(f"claim_production {held}" for held in Held),
    *(f"claim_validators {held}" for held in Held),
    *("claim_validators gone", "open kept", "open fallback"),
    *("publish True", "publish False", "renew True", "renew False", "close True"),
    *("give_verdicts 0", "give_verdicts 1", "give_verdicts 2"),
    *(f"condemn {state}" for state in ("complete", "live", "behind", "ahead", "idle")),
]


def test_attempts_agree_with_the_protocols_table(redis_client: redis.Redis) -> None:
    seen: Counter[str] = Counter()
    for seed in range(30):
        redis_client.flushdb()
        walk, trail = Walk(redis_client, seed), []
        for _ in range(200):
            try:
                trail.append(walk.step())
            except AssertionError as failed:
                pytest.fail(f"seed {seed}, step {len(trail)}, after {trail[-12:]}: {failed}")
        seen += walk.seen
    assert [what for what in MUST_BE_SEEN if seen[what] < 5] == []
