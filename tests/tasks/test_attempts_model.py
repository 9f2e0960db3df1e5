"""Attempts against a model of the protocol's table in plain Python: any order of steps, any age, any loss."""

from __future__ import annotations

from typing import Any

import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from remand_tasks.state.attempts import Attempts, Held
from remand_tasks.state.vault import record_key, vault_key
from remand_tasks.token import Token

N = 2
# Time moves in steps of 20 s, and every expiry lies 15 s beyond such a step: real milliseconds never matter.
STEP, LEASE, HARD = 20, 35, 115
VERDICTS = ("accepted", "rejected", "undetermined")
epochs = st.sampled_from((0, 0, 0, 0, 0, 0, 0, 0, -1, 1))
seldom = st.integers(0, 7).map(lambda drawn: drawn == 7)
groups = st.sampled_from(((0,), (1,), (0, 1)))
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


class Machine(RuleBasedStateMachine):
    def __init__(self, client: redis.Redis) -> None:
        super().__init__()
        client.delete(record_key("r", 1), vault_key("r", 1))
        self.client, self.attempts = client, Attempts(client)
        self.now, self.epoch, self.since, self.count = 0, 1, 1, 0
        self.model: Model | None = None
        self.vault: set[str] = set()
        self.owners = ["nobody"]

    def token(self, by: int = 0) -> Token:
        return Token("r", 1, 1, 1, self.epoch + by)

    def owner(self) -> str:
        self.count += 1
        self.owners.append(f"o{self.count}")
        return self.owners[-1]

    def mine(self, by: int) -> Model | None:
        return self.model if self.model is not None and self.model.epoch == self.epoch + by else None

    def someone(self, data: st.DataObject) -> tuple[str, int | None]:
        """An owner and what it holds: mostly one that really holds it."""
        held: list[tuple[str, int | None]] = []
        if self.model is not None:
            held = [(claim[0], i) for i, claim in self.model.held.items()]
            held += [(self.model.claim[0], None)] if self.model.claim else []
        others = st.tuples(st.sampled_from(self.owners[-3:]), st.sampled_from((None, 0, 1)))
        if held and data.draw(st.integers(0, 7)) < 7:
            return data.draw(st.sampled_from(held))
        return data.draw(others)

    @rule(
        by=epochs,
        moves=st.sampled_from(("on", "on", "new", "no")),
        ask=st.sets(st.integers(0, N - 1)),
        fallback=st.sampled_from((None, None, None, "cand.old")),
    )
    def opens(self, by: int, moves: str, ask: set[int], fallback: str | None) -> None:
        """The ledger moves on, or to a new attempt, or not; and the record is opened."""
        self.epoch += moves != "no"
        if moves == "new":
            self.since = self.epoch
        epoch, old = self.epoch + by, self.model
        given = self.attempts.open(
            self.token(by), since=self.since, validators=N, ask=sorted(ask), expiry=900, fallback=fallback
        )
        assert given == (old is None or old.epoch < epoch)
        if not given:
            return
        kept = old is not None and old.p == "candidate" and old.since == self.since and old.cand in self.vault
        if kept and old is not None and len(old.v) == N and fallback in (None, old.cand):
            for i in old.held:
                old.v[i] = ("undetermined", old.v[i][1], LOST)
            old.held = {}
            for i in ask:
                if old.v[i][0] == "undetermined":
                    old.v[i] = ("open", old.v[i][1], "")
            old.epoch, old.starts = epoch, 0
        elif fallback is None:
            self.model = Model(epoch, self.since)
        elif fallback in self.vault:
            self.model = Model(epoch, self.since, "candidate", cand=fallback)
        else:
            self.model = Model(epoch, self.since, "gone")

    @precondition(lambda self: self.model is not None)
    @rule(by=epochs)
    def claims_production(self, by: int) -> None:
        owner, model = self.owner(), self.mine(by)
        held = self.attempts.claim_production(self.token(by), owner, lease=LEASE, hard=HARD).held
        if model is None:
            assert held is Held.STALE
        elif model.p == "open":
            assert held is Held.CLAIMED
            model.p, model.claim = "claimed", (owner, self.now + LEASE, self.now + HARD)
        else:
            assert held is (Held.HELD if model.p == "claimed" else Held.DONE)

    @rule(
        by=epochs,
        data=st.data(),
        production=st.sampled_from(("candidate", "candidate", "candidate", "throttled")),
    )
    def publishes(self, by: int, data: st.DataObject, production: str) -> None:
        owner, model = self.someone(data)[0], self.mine(by)
        self.count += 1
        name = f"cand.{self.count}" if production == "candidate" else None
        entries = {name: b"sealed"} if name else {}
        given = self.attempts.publish(
            self.token(by), owner, production, facts={}, entries=entries, candidate=name, expiry=900
        )
        wanted = model is not None and model.claim is not None and model.claim[0] == owner
        assert given == wanted
        if given and model is not None:
            model.p, model.cand, model.claim = production, name or "", None
            self.vault |= entries.keys()

    @rule(data=st.data())
    def produces(self, data: st.DataObject) -> None:
        """The ordinary way to a candidate in one step, so that most examples come to judgement."""
        self.opens(0, "new", set(), None)
        self.claims_production(0)
        self.publishes(0, data, "candidate")

    @precondition(lambda self: self.model is not None)
    @rule(by=epochs, group=groups)
    def claims_validators(self, by: int, group: tuple[int, ...]) -> None:
        owner, model = self.owner(), self.mine(by)
        if model is not None and model.p == "candidate" and len(model.v) != N:
            return
        claims = self.attempts.claim_validators(self.token(by), owner, group, lease=LEASE, hard=HARD)
        if model is None:
            assert claims.held is Held.STALE
        elif model.p in {"open", "claimed"}:
            assert claims.held is Held.HELD
        elif model.p != "candidate":
            assert claims.held is Held.DONE
        elif model.cand not in self.vault:
            assert claims.held is Held.DONE
            model.p = "gone"
        elif any(i in model.held for i in group):
            assert claims.held is Held.HELD
        else:
            mine = tuple(i for i in group if model.v[i][0] == "open")
            assert (claims.held, claims.indices) == (Held.CLAIMED if mine else Held.DONE, mine)
            for i in mine:
                model.held[i] = (owner, self.now + LEASE, self.now + HARD)
                model.v[i] = ("claimed", model.v[i][1] + 1, "")

    @rule(by=epochs, group=groups, data=st.data(), verdict=st.sampled_from(VERDICTS))
    def gives_verdicts(self, by: int, group: tuple[int, ...], data: st.DataObject, verdict: str) -> None:
        owner, model = self.someone(data)[0], self.mine(by)
        entries = {i: (f"find.{i}", b"sealed") for i in group}
        given = self.attempts.give_verdicts(
            self.token(by), owner, dict.fromkeys(group, (verdict, "{}")), entries=entries, expiry=900
        )
        wanted = (
            () if model is None else tuple(i for i in group if i in model.held and model.held[i][0] == owner)
        )
        assert given == wanted
        for i in wanted:
            assert model is not None
            del model.held[i]
            model.v[i] = (verdict, model.v[i][1], "{}")
            self.vault.add(f"find.{i}")

    @precondition(lambda self: self.model is not None)
    @rule(data=st.data(), group=groups, verdict=st.sampled_from(VERDICTS))
    def judges(self, data: st.DataObject, group: tuple[int, ...], verdict: str) -> None:
        """The ordinary way to a verdict in one step."""
        self.claims_validators(0, group)
        self.gives_verdicts(0, group, data, verdict)

    @precondition(lambda self: self.model is not None and self.model.p == "candidate")
    @rule(ask=st.sets(st.integers(0, N - 1)))
    def revalidates(self, ask: set[int]) -> None:
        self.starts(0)
        self.opens(0, "on", ask, None)

    @precondition(lambda self: self.model is not None and (self.model.claim or self.model.held))
    @rule(data=st.data(), steps=st.integers(1, 3))
    def holds_on(self, data: st.DataObject, steps: int) -> None:
        """Time passes over a claim, which is renewed or not, and the pulse looks."""
        self.time_passes(steps)
        self.renews(0, data)
        self.condemns(0, True)

    @precondition(lambda self: self.model is not None)
    @rule(by=epochs, data=st.data())
    def renews(self, by: int, data: st.DataObject) -> None:
        (owner, index), model = self.someone(data), self.mine(by)
        given = self.attempts.renew([(self.token(by), owner, index)], lease=LEASE)
        claim = None if model is None else model.claim if index is None else model.held.get(index)
        wanted = claim is not None and claim[0] == owner and claim[1] >= self.now and claim[2] > self.now
        assert given == [wanted]
        if wanted and claim is not None and model is not None:
            moved = (owner, min(self.now + LEASE, claim[2]), claim[2])
            if index is None:
                model.claim = moved
            else:
                model.held[index] = moved

    @rule(by=epochs, running=st.sampled_from((True, True, False)))
    def condemns(self, by: int, running: bool) -> None:
        epoch = self.epoch + by
        look = self.attempts.condemn(self.token(by), running=running)
        if self.model is None:
            self.model = Model(epoch, epoch, "norec", n=0)
        model = self.model
        assert (look.epoch, look.starts) == (model.epoch, model.starts)
        if model.epoch != epoch:
            assert look.state == ("behind" if model.epoch < epoch else "ahead")
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

    @rule(by=epochs)
    def starts(self, by: int) -> None:
        model = self.mine(by)
        if model is not None:
            model.starts += 1
        assert self.attempts.start(self.token(by)) == (model.starts if model else 0)

    @rule(steps=st.integers(1, 3))
    def time_passes(self, steps: int) -> None:
        self.now += STEP * steps
        key = record_key("r", 1)
        for field, value in self.client.hgetall(key).items():
            if field in (b"exp", b"hard") or (field[:1] in b"xh" and field[1:].isdigit()):
                self.client.hset(key, field, int(value) - STEP * steps * 1000)

    @rule()
    def old_candidate_is_kept(self) -> None:
        self.client.hset(vault_key("r", 1), "cand.old", "sealed")
        self.client.expire(vault_key("r", 1), 900)
        self.vault.add("cand.old")

    @rule(data=st.data(), everything=seldom)
    def entries_are_lost(self, data: st.DataObject, everything: bool) -> None:
        if everything:
            self.client.flushdb()
            self.model, self.vault = None, set()
        elif self.vault:
            name = data.draw(st.sampled_from(sorted(self.vault)))
            self.client.hdel(vault_key("r", 1), name)
            self.vault.discard(name)

    @precondition(lambda self: self.model is not None and self.model.complete)
    @rule(by=epochs)
    def closes(self, by: int) -> None:
        given = self.attempts.close("r", 1, self.epoch + by)
        assert given == (self.model is None or self.model.epoch <= self.epoch + by)
        if given:
            self.model, self.vault = None, set()

    @invariant()
    def agrees(self) -> None:
        found = self.attempts.read("r", 1)
        model = self.model
        assert (found is None) == (model is None)
        if found is not None and model is not None:
            shown: tuple[Any, ...] = (found.epoch, found.since, found.p, found.candidate, found.starts)
            assert shown == (model.epoch, model.since, model.p, model.cand, model.starts)
            assert [(one.state, one.tries, one.detail) for one in found.validators] == model.v
            assert (found.complete, found.present_candidate) == (model.complete, model.cand in self.vault)
        assert {name.decode() for name in self.client.hkeys(vault_key("r", 1))} == self.vault

    @invariant()
    def nothing_stays_for_ever(self) -> None:
        assert all(self.client.pttl(key) > 0 for key in self.client.scan_iter())


def test_attempts_agree_with_the_protocols_table(redis_client: redis.Redis) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        lambda: Machine(redis_client),
        settings=settings(
            max_examples=150,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
