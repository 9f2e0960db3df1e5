from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import redis

from remand_tasks.state.attempts import PUBLISHED, Attempts, Held, Record
from remand_tasks.state.vault import KeyRing, Vault, record_key, vault_key
from remand_tasks.token import Token

T = Token("r", 7, 1, 1, 3)
RECORD, ENTRIES = record_key("r", 7), vault_key("r", 7)
CAND = "cand.3"
LEASE: dict[str, float] = {"lease": 30, "hard": 100}
DAY = 86_400.0


@pytest.fixture
def attempts(redis_client: redis.Redis) -> Attempts:
    return Attempts(redis_client)


@pytest.fixture(autouse=True)
def nothing_stays_for_ever(redis_client: redis.Redis) -> Any:
    """After every test, whatever it did, no key is left without an expiry."""
    yield
    assert {
        key: redis_client.pttl(key) for key in redis_client.scan_iter() if redis_client.pttl(key) == -1
    } == {}


def next_epoch(token: Token = T, by: int = 1) -> Token:
    return token._replace(epoch=token.epoch + by)


def age(client: redis.Redis, seconds: float, token: Token = T) -> None:
    """Let `seconds` pass for the claims of a record: every time in it moves that far into the past."""
    key = record_key(token.run, token.seq)
    for field, value in client.hgetall(key).items():
        name = field.decode()
        if name in {"exp", "hard"} or (name[0] in "xh" and name[1:].isdigit()):
            client.hset(key, name, int(value) - round(seconds * 1000))


def opened(attempts: Attempts, token: Token = T, **change: Any) -> bool:
    return attempts.open(token, **{"since": 3, "validators": 3, "expiry": DAY, **change})


def publish(attempts: Attempts, token: Token = T, owner: str = "a", **change: Any) -> bool:
    given: dict[str, Any] = {
        "production": "candidate",
        "facts": {},
        "entries": {CAND: b"sealed"},
        "candidate": CAND,
        "expiry": DAY,
    }
    given.update(change)
    return attempts.publish(token, owner, given.pop("production"), **given)


def with_candidate(attempts: Attempts, token: Token = T, **change: Any) -> None:
    assert opened(attempts, token, **change)
    assert attempts.claim_production(token, "a", **LEASE).held is Held.CLAIMED
    assert publish(attempts, token)


def record(attempts: Attempts) -> Record:
    found = attempts.read("r", 7)
    assert found is not None
    return found


def states(attempts: Attempts) -> list[str]:
    return [one.state for one in record(attempts).validators]


def raw(client: redis.Redis) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
    return client.hgetall(RECORD), client.hgetall(ENTRIES)


# open


def test_opening_starts_an_empty_record(attempts: Attempts) -> None:
    assert opened(attempts)
    found = record(attempts)
    assert (found.epoch, found.since, found.p, found.candidate, found.starts) == (3, 3, "open", "", 0)
    assert [(one.state, one.tries, one.detail) for one in found.validators] == [("open", 0, "")] * 3
    assert found.facts == {}
    assert not found.complete
    assert not found.present_candidate


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_opening_the_same_or_an_older_epoch_changes_nothing(
    attempts: Attempts, redis_client: redis.Redis, behind: int
) -> None:
    with_candidate(attempts)
    before = raw(redis_client)
    assert not opened(attempts, next_epoch(by=-behind), since=1, fallback=CAND)
    assert raw(redis_client) == before


def test_epochs_are_compared_as_numbers(attempts: Attempts) -> None:
    assert opened(attempts, T._replace(epoch=9))
    assert opened(attempts, T._replace(epoch=10))
    assert not opened(attempts, T._replace(epoch=9))


def test_opening_keeps_candidate_verdicts_and_facts_of_the_same_attempt(attempts: Attempts) -> None:
    with_candidate(attempts)
    attempts.claim_validators(T, "b", [0, 1, 2], **LEASE)
    attempts.give_verdicts(T, "b", {0: ("accepted", ""), 1: ("undetermined", '{"x":1}')}, expiry=DAY)
    attempts.start(T)
    assert opened(attempts, next_epoch(), ask=[0, 1])
    found = record(attempts)
    assert (found.epoch, found.p, found.candidate, found.starts) == (4, "candidate", CAND, 0)
    assert found.present_candidate
    # accepted stays although asked; undetermined is asked again with its tries; the claim left over is lost
    assert [(one.state, one.tries) for one in found.validators] == [
        ("accepted", 1),
        ("open", 1),
        ("undetermined", 1),
    ]
    assert found.validators[1].detail == ""
    assert json.loads(found.validators[2].detail) == {"code": "lost"}


def test_claim_left_over_is_opened_again_when_asked_for(attempts: Attempts) -> None:
    with_candidate(attempts)
    attempts.claim_validators(T, "b", [0], **LEASE)
    assert opened(attempts, next_epoch(), ask=[0])
    assert states(attempts)[0] == "open"
    assert attempts.claim_validators(next_epoch(), "c", [0], **LEASE).indices == (0,)
    assert record(attempts).validators[0].tries == 2


def test_rejected_verdict_is_never_asked_again(attempts: Attempts) -> None:
    with_candidate(attempts)
    attempts.claim_validators(T, "b", [0], **LEASE)
    attempts.give_verdicts(T, "b", {0: ("rejected", "")}, expiry=DAY)
    assert opened(attempts, next_epoch(), ask=[0, 1, 2])
    assert states(attempts) == ["rejected", "open", "open"]


def test_opening_another_attempt_starts_empty(attempts: Attempts) -> None:
    with_candidate(attempts, since=3)
    attempts.claim_validators(T, "b", [0], **LEASE)
    attempts.give_verdicts(T, "b", {0: ("rejected", "")}, expiry=DAY)
    assert opened(attempts, next_epoch(), since=4)
    found = record(attempts)
    assert (found.p, found.candidate, found.facts) == ("open", "", {})
    assert [(one.state, one.tries) for one in found.validators] == [("open", 0)] * 3


def test_opening_starts_empty_when_the_candidate_left_the_vault(
    attempts: Attempts, redis_client: redis.Redis
) -> None:
    with_candidate(attempts)
    redis_client.delete(ENTRIES)
    assert opened(attempts, next_epoch())
    assert record(attempts).p == "open"


def test_opening_starts_empty_when_the_number_of_validators_differs(attempts: Attempts) -> None:
    with_candidate(attempts)
    assert opened(attempts, next_epoch(), validators=4)
    assert record(attempts).p == "open"
    assert states(attempts) == ["open"] * 4


@pytest.mark.parametrize("production", sorted(PUBLISHED - {"candidate"}))
def test_opening_starts_empty_after_any_end_without_candidate(attempts: Attempts, production: str) -> None:
    opened(attempts)
    attempts.claim_production(T, "a", **LEASE)
    assert publish(attempts, production=production, candidate=None, entries={}, facts={"k": "v"})
    assert opened(attempts, next_epoch())
    assert record(attempts).p == "open"
    assert record(attempts).facts == {}


def test_opening_starts_empty_after_gone_even_if_the_entry_is_back(
    attempts: Attempts, redis_client: redis.Redis
) -> None:
    with_candidate(attempts)
    redis_client.rename(ENTRIES, "away")
    attempts.claim_validators(T, "b", [0], **LEASE)
    redis_client.rename("away", ENTRIES)
    assert opened(attempts, next_epoch())
    assert record(attempts).p == "open"


def test_opening_starts_empty_over_a_claim(attempts: Attempts) -> None:
    opened(attempts)
    attempts.claim_production(T, "a", **LEASE)
    assert opened(attempts, next_epoch())
    assert record(attempts).p == "open"
    assert not publish(attempts)


def test_fallback_in_the_vault_becomes_the_candidate(attempts: Attempts, redis_client: redis.Redis) -> None:
    with_candidate(attempts)
    attempts.claim_validators(T, "b", [0], **LEASE)
    redis_client.hset(ENTRIES, "fall.1", b"F")
    assert opened(attempts, next_epoch(), since=4, fallback="fall.1")
    found = record(attempts)
    assert (found.p, found.candidate, found.present_candidate) == ("candidate", "fall.1", True)
    assert [(one.state, one.tries) for one in found.validators] == [("open", 0)] * 3


def test_fallback_replaces_another_candidate_of_the_same_attempt(
    attempts: Attempts, redis_client: redis.Redis
) -> None:
    with_candidate(attempts)
    redis_client.hset(ENTRIES, "fall.1", b"F")
    assert opened(attempts, next_epoch(), fallback="fall.1")
    assert record(attempts).candidate == "fall.1"


def test_fallback_already_under_judgement_keeps_its_verdicts(
    attempts: Attempts, redis_client: redis.Redis
) -> None:
    with_candidate(attempts)
    redis_client.hset(ENTRIES, "fall.1", b"F")
    token = next_epoch()
    assert opened(attempts, token, since=4, fallback="fall.1")
    attempts.claim_validators(token, "b", [0], **LEASE)
    attempts.give_verdicts(token, "b", {0: ("accepted", "")}, expiry=DAY)
    assert opened(attempts, next_epoch(by=2), since=4, fallback="fall.1")
    assert states(attempts) == ["accepted", "open", "open"]


def test_missing_fallback_is_gone(attempts: Attempts) -> None:
    assert opened(attempts, fallback="fall.1")
    assert (record(attempts).p, record(attempts).candidate) == ("gone", "")
    assert record(attempts).complete


def test_opening_overwrites_an_older_tombstone_only(attempts: Attempts) -> None:
    attempts.condemn(T, running=True)
    assert record(attempts).p == "norec"
    assert not opened(attempts)
    assert opened(attempts, next_epoch())
    assert record(attempts).p == "open"


def test_opening_sets_one_expiry_on_record_and_vault(attempts: Attempts, redis_client: redis.Redis) -> None:
    redis_client.hset(ENTRIES, "old", b"x")
    opened(attempts, expiry=500)
    for key in (RECORD, ENTRIES):
        assert 490_000 < redis_client.pttl(key) <= 500_000


@pytest.mark.parametrize("expiry", [-10.0, 0.0, 59.0])
def test_overdue_item_keeps_its_record_for_a_minute(
    attempts: Attempts, redis_client: redis.Redis, expiry: float
) -> None:
    opened(attempts, expiry=expiry)
    assert 50_000 < redis_client.pttl(RECORD) <= 60_000


# claim_production and publish


def test_claim_of_open_work_is_given_once(attempts: Attempts) -> None:
    opened(attempts)
    assert attempts.claim_production(T, "a", **LEASE).held is Held.CLAIMED
    assert attempts.claim_production(T, "b", **LEASE).held is Held.HELD


def test_of_many_claims_at_once_exactly_one_is_given(attempts: Attempts) -> None:
    for epoch in range(3, 23):
        token = T._replace(epoch=epoch)
        opened(attempts, token, since=epoch)
        barrier = Barrier(8)

        def claim(i: int, token: Token = token, barrier: Barrier = barrier) -> Held:
            barrier.wait()
            return attempts.claim_production(token, f"o{i}", **LEASE).held

        with ThreadPoolExecutor(8) as pool:
            assert sorted(pool.map(claim, range(8))) == [Held.CLAIMED] + [Held.HELD] * 7


def test_expired_claim_is_not_taken_over(attempts: Attempts, redis_client: redis.Redis) -> None:
    opened(attempts)
    attempts.claim_production(T, "a", **LEASE)
    age(redis_client, 1000)
    assert attempts.claim_production(T, "b", **LEASE).held is Held.HELD


@pytest.mark.parametrize("by", [-1, 1])
def test_claim_of_another_epoch_is_stale(attempts: Attempts, redis_client: redis.Redis, by: int) -> None:
    opened(attempts)
    before = raw(redis_client)
    assert attempts.claim_production(next_epoch(by=by), "a", **LEASE).held is Held.STALE
    assert raw(redis_client) == before


def test_claim_without_a_record_is_stale_and_makes_none(
    attempts: Attempts, redis_client: redis.Redis
) -> None:
    assert attempts.claim_production(T, "a", **LEASE).held is Held.STALE
    assert redis_client.dbsize() == 0


@pytest.mark.parametrize("production", sorted(PUBLISHED))
def test_claim_of_finished_work_says_done(attempts: Attempts, production: str) -> None:
    opened(attempts)
    attempts.claim_production(T, "a", **LEASE)
    candidate = CAND if production == "candidate" else None
    assert publish(attempts, production=production, candidate=candidate)
    assert attempts.claim_production(T, "b", **LEASE).held is Held.DONE
    assert record(attempts).p == production
    assert record(attempts).complete == (production != "candidate")


def test_claim_brings_the_wanted_entries_that_exist(attempts: Attempts, redis_client: redis.Redis) -> None:
    redis_client.hset(ENTRIES, mapping={"resp.1": b"\xff\x00", "find.0": b"F", "other": b"O"})
    opened(attempts)
    claim = attempts.claim_production(T, "a", **LEASE, wanted=["resp.1", "missing", "find.0"])
    assert claim.sealed == {"resp.1": b"\xff\x00", "find.0": b"F"}
    assert attempts.claim_production(T, "b", **LEASE, wanted=["resp.1"]).sealed == {}


def test_claim_lasts_for_its_lease_but_never_past_its_hard_end(
    attempts: Attempts, redis_client: redis.Redis
) -> None:
    opened(attempts)
    now = attempts.now()
    attempts.claim_production(T, "a", lease=30, hard=10)
    found = redis_client.hmget(RECORD, "exp", "hard")
    assert found[0] == found[1]
    assert now + 9.9 < int(found[0] or 0) / 1000 < now + 15


def test_publishing_writes_code_facts_and_entries_together(
    attempts: Attempts, redis_client: redis.Redis
) -> None:
    redis_client.hset(ENTRIES, mapping={"resp.1": b"old", "kept": b"K"})
    opened(attempts)
    attempts.claim_production(T, "a", **LEASE)
    assert publish(
        attempts,
        facts={"generations": "2", "response": "usable"},
        entries={CAND: b"C", "resp.3": b"R"},
        drop=["resp.1", "never-there"],
        expiry=700,
    )
    found = record(attempts)
    assert (found.p, found.candidate, found.present_candidate) == ("candidate", CAND, True)
    assert found.facts == {"generations": "2", "response": "usable"}
    assert redis_client.hgetall(ENTRIES) == {b"kept": b"K", CAND.encode(): b"C", b"resp.3": b"R"}
    for key in (RECORD, ENTRIES):
        assert 690_000 < redis_client.pttl(key) <= 700_000
    assert redis_client.hmget(RECORD, "owner", "exp", "hard") == [None] * 3


def test_entry_both_dropped_and_written_is_written(attempts: Attempts, redis_client: redis.Redis) -> None:
    opened(attempts)
    attempts.claim_production(T, "a", **LEASE)
    publish(attempts, drop=[CAND])
    assert redis_client.hget(ENTRIES, CAND) == b"sealed"


def _is_refused(
    attempts: Attempts, client: redis.Redis, token: Token = T, owner: str = "a", **change: Any
) -> None:
    before = raw(client)
    assert not publish(
        attempts, token, owner, facts={"k": "v"}, entries={CAND: b"x", "n": b"n"}, drop=["d"], **change
    )
    assert raw(client) == before


@pytest.mark.parametrize("by", [-1, 1])
def test_publishing_under_another_epoch_is_refused(
    attempts: Attempts, redis_client: redis.Redis, by: int
) -> None:
    opened(attempts)
    attempts.claim_production(T, "a", **LEASE)
    _is_refused(attempts, redis_client, next_epoch(by=by))


def test_publishing_by_another_owner_is_refused(attempts: Attempts, redis_client: redis.Redis) -> None:
    opened(attempts)
    attempts.claim_production(T, "a", **LEASE)
    _is_refused(attempts, redis_client, owner="b")


def test_publishing_unclaimed_work_is_refused(attempts: Attempts, redis_client: redis.Redis) -> None:
    opened(attempts)
    # even if an owner were left over from somewhere: the state guards, too
    redis_client.hset(RECORD, "owner", "a")
    _is_refused(attempts, redis_client)


def test_publishing_twice_is_refused(attempts: Attempts, redis_client: redis.Redis) -> None:
    with_candidate(attempts)
    redis_client.hset(RECORD, "owner", "a")
    _is_refused(attempts, redis_client)


def test_publishing_without_a_record_is_refused_and_makes_nothing(
    attempts: Attempts, redis_client: redis.Redis
) -> None:
    _is_refused(attempts, redis_client)
    assert redis_client.dbsize() == 0


def test_publishing_after_expiry_is_accepted_until_condemned(
    attempts: Attempts, redis_client: redis.Redis
) -> None:
    opened(attempts)
    attempts.claim_production(T, "a", **LEASE)
    age(redis_client, 1000)
    assert publish(attempts)
    assert record(attempts).p == "candidate"


def test_publishing_after_condemnation_is_refused(attempts: Attempts, redis_client: redis.Redis) -> None:
    opened(attempts)
    attempts.claim_production(T, "a", **LEASE)
    age(redis_client, 1000)
    attempts.condemn(T, running=True)
    redis_client.hset(RECORD, "owner", "a")
    _is_refused(attempts, redis_client)
    assert record(attempts).p == "lost"


@pytest.mark.parametrize("production", ["lost", "gone", "norec", "void", "open", "claimed", "nonsense", ""])
def test_code_that_no_producer_gives_cannot_be_published(attempts: Attempts, production: str) -> None:
    with pytest.raises(ValueError, match="not a code"):
        publish(attempts, production=production, candidate=None)


@pytest.mark.parametrize(
    ("production", "candidate"), [("candidate", None), ("candidate", ""), ("retry", CAND)]
)
def test_candidate_code_and_candidate_name_go_together(
    attempts: Attempts, production: str, candidate: str | None
) -> None:
    with pytest.raises(ValueError, match="entry name"):
        publish(attempts, production=production, candidate=candidate)


# claim_validators and give_verdicts


def test_group_claim_takes_the_open_ones_and_brings_the_candidate(
    attempts: Attempts, redis_client: redis.Redis
) -> None:
    with_candidate(attempts)
    redis_client.hset(ENTRIES, "resp.3", b"R")
    attempts.claim_validators(T, "b", [1], **LEASE)
    attempts.give_verdicts(T, "b", {1: ("accepted", "")}, expiry=DAY)
    claims = attempts.claim_validators(T, "c", [0, 1, 2], **LEASE, wanted=["resp.3", "missing"])
    assert (claims.held, claims.indices, claims.candidate) == (Held.CLAIMED, (0, 2), CAND)
    assert claims.sealed == {CAND: b"sealed", "resp.3": b"R"}
    assert [(one.state, one.tries) for one in record(attempts).validators] == [
        ("claimed", 1),
        ("accepted", 1),
        ("claimed", 1),
    ]


def test_group_with_one_held_is_not_claimed_at_all(attempts: Attempts, redis_client: redis.Redis) -> None:
    with_candidate(attempts)
    attempts.claim_validators(T, "b", [2], **LEASE)
    age(redis_client, 1000)  # nor is an expired claim taken over
    before = raw(redis_client)
    claims = attempts.claim_validators(T, "c", [0, 1, 2], **LEASE)
    assert (claims.held, claims.indices, claims.sealed) == (Held.HELD, (), {})
    assert raw(redis_client) == before


def test_another_group_can_be_claimed_meanwhile(attempts: Attempts) -> None:
    with_candidate(attempts)
    attempts.claim_validators(T, "b", [2], **LEASE)
    assert attempts.claim_validators(T, "c", [0, 1], **LEASE).indices == (0, 1)


@pytest.mark.parametrize("verdict", ["accepted", "rejected", "undetermined"])
def test_group_judged_already_is_done(attempts: Attempts, verdict: str) -> None:
    with_candidate(attempts)
    attempts.claim_validators(T, "b", [0], **LEASE)
    attempts.give_verdicts(T, "b", {0: (verdict, "")}, expiry=DAY)
    assert attempts.claim_validators(T, "c", [0], **LEASE).held is Held.DONE
    assert attempts.claim_validators(T, "c", [], **LEASE).held is Held.DONE


def test_validators_wait_while_nothing_is_published(attempts: Attempts) -> None:
    opened(attempts)
    assert attempts.claim_validators(T, "b", [0], **LEASE).held is Held.HELD
    attempts.claim_production(T, "a", **LEASE)
    assert attempts.claim_validators(T, "b", [0], **LEASE).held is Held.HELD
    assert states(attempts) == ["open"] * 3


@pytest.mark.parametrize("production", sorted(PUBLISHED - {"candidate"}))
def test_validators_without_a_candidate_have_nothing_to_do(attempts: Attempts, production: str) -> None:
    opened(attempts)
    attempts.claim_production(T, "a", **LEASE)
    publish(attempts, production=production, candidate=None)
    assert attempts.claim_validators(T, "b", [0], **LEASE).held is Held.DONE
    assert record(attempts).p == production
    assert states(attempts) == ["open"] * 3


@pytest.mark.parametrize("by", [-1, 1])
def test_validators_of_another_epoch_are_stale(
    attempts: Attempts, redis_client: redis.Redis, by: int
) -> None:
    with_candidate(attempts)
    before = raw(redis_client)
    assert attempts.claim_validators(next_epoch(by=by), "b", [0], **LEASE).held is Held.STALE
    assert raw(redis_client) == before


def test_validators_without_a_record_are_stale(attempts: Attempts, redis_client: redis.Redis) -> None:
    assert attempts.claim_validators(T, "b", [0], **LEASE).held is Held.STALE
    assert redis_client.dbsize() == 0


def test_candidate_that_left_the_vault_is_gone(attempts: Attempts, redis_client: redis.Redis) -> None:
    with_candidate(attempts)
    redis_client.hdel(ENTRIES, CAND)
    assert not record(attempts).present_candidate
    assert attempts.claim_validators(T, "b", [0], **LEASE).held is Held.DONE
    found = record(attempts)
    assert (found.p, found.complete) == ("gone", True)
    assert states(attempts) == ["open"] * 3


def test_validator_the_record_does_not_have_is_an_error(
    attempts: Attempts, redis_client: redis.Redis
) -> None:
    with_candidate(attempts)
    before = raw(redis_client)
    with pytest.raises(redis.ResponseError, match="no such validator"):
        attempts.claim_validators(T, "b", [0, 3], **LEASE)
    assert raw(redis_client) == before


def test_verdicts_complete_the_record(attempts: Attempts, redis_client: redis.Redis) -> None:
    with_candidate(attempts)
    attempts.claim_validators(T, "b", [0, 1, 2], **LEASE)
    verdicts = {0: ("accepted", ""), 1: ("rejected", '{"findings":2}')}
    entries = {1: ("find.1-3", b"F")}
    assert attempts.give_verdicts(T, "b", verdicts, entries=entries, expiry=800) == (0, 1)
    assert not record(attempts).complete
    assert attempts.give_verdicts(T, "b", {2: ("undetermined", "")}, expiry=800) == (2,)
    found = record(attempts)
    assert found.complete
    assert [(one.state, one.tries, one.detail) for one in found.validators] == [
        ("accepted", 1, ""),
        ("rejected", 1, '{"findings":2}'),
        ("undetermined", 1, ""),
    ]
    assert redis_client.hget(ENTRIES, "find.1-3") == b"F"
    for key in (RECORD, ENTRIES):
        assert 790_000 < redis_client.pttl(key) <= 800_000
    assert not [name for name in redis_client.hkeys(RECORD) if name[:1] in b"oxh"]


def test_record_without_validators_is_complete_with_its_candidate(attempts: Attempts) -> None:
    with_candidate(attempts, validators=0)
    assert record(attempts).complete
    assert attempts.condemn(T, running=True).state == "complete"


Refusal = Callable[[Attempts, redis.Redis], tuple[Token, str]]


def _other_epoch(attempts: Attempts, client: redis.Redis) -> tuple[Token, str]:
    return next_epoch(by=-1), "b"


def _later_epoch(attempts: Attempts, client: redis.Redis) -> tuple[Token, str]:
    return next_epoch(), "b"


def _other_owner(attempts: Attempts, client: redis.Redis) -> tuple[Token, str]:
    return T, "c"


def _condemned(attempts: Attempts, client: redis.Redis) -> tuple[Token, str]:
    age(client, 1000)
    attempts.condemn(T, running=True)
    client.hset(RECORD, "o1", "b")
    return T, "b"


def _no_record(attempts: Attempts, client: redis.Redis) -> tuple[Token, str]:
    client.delete(RECORD)
    return T, "b"


@pytest.mark.parametrize("refusal", [_other_epoch, _later_epoch, _other_owner, _condemned, _no_record])
def test_refused_verdict_writes_neither_verdict_nor_findings(
    attempts: Attempts, redis_client: redis.Redis, refusal: Refusal
) -> None:
    with_candidate(attempts)
    attempts.claim_validators(T, "b", [1], **LEASE)
    token, owner = refusal(attempts, redis_client)
    before = raw(redis_client)
    given = attempts.give_verdicts(
        token, owner, {1: ("accepted", "{}")}, entries={1: ("find.1", b"F")}, expiry=DAY
    )
    assert given == ()
    assert raw(redis_client) == before


def test_of_a_groups_verdicts_only_those_still_held_are_taken(
    attempts: Attempts, redis_client: redis.Redis
) -> None:
    with_candidate(attempts)
    attempts.claim_validators(T, "b", [0], **LEASE)
    attempts.claim_validators(T, "c", [1], **LEASE)
    verdicts = dict.fromkeys((0, 1, 2), ("rejected", ""))
    entries = {i: (f"find.{i}", b"F") for i in verdicts}
    assert attempts.give_verdicts(T, "b", verdicts, entries=entries, expiry=DAY) == (0,)
    assert states(attempts) == ["rejected", "claimed", "open"]
    assert redis_client.hmget(ENTRIES, "find.0", "find.1", "find.2") == [b"F", None, None]


def test_verdict_after_expiry_is_accepted_until_condemned(
    attempts: Attempts, redis_client: redis.Redis
) -> None:
    with_candidate(attempts)
    attempts.claim_validators(T, "b", [0], **LEASE)
    age(redis_client, 1000)
    assert attempts.give_verdicts(T, "b", {0: ("accepted", "")}, expiry=DAY) == (0,)


def test_verdict_given_twice_keeps_the_first(attempts: Attempts) -> None:
    with_candidate(attempts)
    attempts.claim_validators(T, "b", [0], **LEASE)
    attempts.give_verdicts(T, "b", {0: ("rejected", "")}, expiry=DAY)
    assert attempts.give_verdicts(T, "b", {0: ("accepted", "")}, expiry=DAY) == ()
    assert states(attempts)[0] == "rejected"


def test_what_is_no_verdict_or_not_this_validators_findings_is_an_error(attempts: Attempts) -> None:
    with pytest.raises(ValueError, match="not a verdict"):
        attempts.give_verdicts(T, "b", {0: ("open", "")}, expiry=DAY)
    for name in ("find.12", "find.2", "cand"):
        with pytest.raises(ValueError, match="findings of validator 1"):
            attempts.give_verdicts(T, "b", {1: ("rejected", "")}, entries={1: (name, b"F")}, expiry=DAY)
    with pytest.raises(ValueError, match="without a verdict"):
        attempts.give_verdicts(T, "b", {1: ("rejected", "")}, entries={2: ("find.2", b"F")}, expiry=DAY)


# renew


def expiry_of(client: redis.Redis, field: str) -> int:
    return int(client.hget(RECORD, field) or 0)


def test_renewal_moves_the_expiry_of_each_claim(attempts: Attempts, redis_client: redis.Redis) -> None:
    with_candidate(attempts)
    attempts.claim_validators(T, "b", [0, 1], **LEASE)
    other = T._replace(seq=8)
    opened(attempts, other)
    attempts.claim_production(other, "d", **LEASE)
    age(redis_client, 20)
    age(redis_client, 20, other)
    now = attempts.now()
    claims: list[tuple[Token, str, int | None]] = [(T, "b", 0), (other, "d", None), (T, "b", 2), (T, "b", 1)]
    assert attempts.renew(claims, lease=30) == [True, True, False, True]
    for value in (
        expiry_of(redis_client, "x0"),
        expiry_of(redis_client, "x1"),
        int(redis_client.hget(record_key("r", 8), "exp") or 0),
    ):
        assert now + 29.9 < value / 1000 < now + 40
    assert attempts.renew([], lease=30) == []


@pytest.mark.parametrize("index", [None, 0])
def test_renewal_stops_at_the_hard_end(
    attempts: Attempts, redis_client: redis.Redis, index: int | None
) -> None:
    exp, hard = ("exp", "hard") if index is None else ("x0", "h0")
    if index is None:
        opened(attempts)
        attempts.claim_production(T, "b", **LEASE)
    else:
        with_candidate(attempts)
        attempts.claim_validators(T, "b", [0], **LEASE)
    for passed in (20, 20, 20, 20):  # 80 of 100 seconds, renewed in time
        age(redis_client, passed)
        assert attempts.renew([(T, "b", index)], lease=30) == [True]
        assert expiry_of(redis_client, exp) <= expiry_of(redis_client, hard)
    assert expiry_of(redis_client, exp) == expiry_of(redis_client, hard)
    age(redis_client, 25)
    assert attempts.renew([(T, "b", index)], lease=30) == [False]
    assert attempts.condemn(T, running=True).state == ("complete" if index is None else "idle")


def test_claim_past_its_hard_end_is_not_renewed_even_if_it_has_not_expired(
    attempts: Attempts, redis_client: redis.Redis
) -> None:
    opened(attempts)
    attempts.claim_production(T, "a", **LEASE)
    redis_client.hset(RECORD, "hard", int(attempts.now() * 1000) - 1000)
    assert attempts.renew([(T, "a", None)], lease=30) == [False]


@pytest.mark.parametrize("index", [None, 0])
def test_expired_claim_is_not_renewed(
    attempts: Attempts, redis_client: redis.Redis, index: int | None
) -> None:
    with_candidate(attempts)
    token = T
    if index is None:
        token = next_epoch()
        opened(attempts, token, since=4)
        attempts.claim_production(token, "b", lease=30, hard=1000)
    else:
        attempts.claim_validators(T, "b", [0], lease=30, hard=1000)
    age(redis_client, 31)
    before = raw(redis_client)
    assert attempts.renew([(token, "b", index)], lease=30) == [False]
    assert raw(redis_client) == before


@pytest.mark.parametrize("index", [None, 0])
@pytest.mark.parametrize(("by", "owner"), [(0, "x"), (-1, "b"), (1, "b")])
def test_claim_of_another_owner_or_epoch_is_not_renewed(
    attempts: Attempts, redis_client: redis.Redis, index: int | None, by: int, owner: str
) -> None:
    if index is None:
        opened(attempts)
        attempts.claim_production(T, "b", **LEASE)
    else:
        with_candidate(attempts)
        attempts.claim_validators(T, "b", [0], **LEASE)
    before = raw(redis_client)
    assert attempts.renew([(next_epoch(by=by), owner, index)], lease=60) == [False]
    assert raw(redis_client) == before


def test_finished_work_is_not_renewed(attempts: Attempts, redis_client: redis.Redis) -> None:
    with_candidate(attempts)
    late = int(attempts.now() * 1000) + 10_000
    redis_client.hset(RECORD, mapping={"owner": "a", "exp": late, "hard": late})
    assert attempts.renew([(T, "a", None)], lease=30) == [False]


def test_everything_still_works_after_the_server_forgot_its_scripts(
    attempts: Attempts, redis_client: redis.Redis
) -> None:
    opened(attempts)
    attempts.claim_production(T, "a", **LEASE)
    assert attempts.renew([(T, "a", None)], lease=30) == [True]
    redis_client.script_flush()
    assert attempts.renew([(T, "a", None), (T, "b", None)], lease=30) == [True, False]
    redis_client.script_flush()
    assert publish(attempts)


# condemn


def test_missing_record_becomes_a_tombstone_that_expires(
    attempts: Attempts, redis_client: redis.Redis
) -> None:
    look = attempts.condemn(T, running=True)
    assert (look.state, look.epoch, look.starts) == ("complete", 3, 0)
    found = record(attempts)
    assert (found.epoch, found.since, found.p, found.validators, found.complete) == (3, 3, "norec", (), True)
    assert 89_000_000 < redis_client.pttl(RECORD) <= 90_000_000
    # it latches: who comes late finds it, and changes nothing
    assert not opened(attempts)
    assert attempts.claim_production(T, "a", **LEASE).held is Held.DONE
    assert attempts.condemn(T, running=True).state == "complete"


def test_record_behind_and_ahead_are_left_alone(attempts: Attempts, redis_client: redis.Redis) -> None:
    opened(attempts)
    attempts.claim_production(T, "a", **LEASE)
    age(redis_client, 1000)
    before = raw(redis_client)
    behind = attempts.condemn(next_epoch(), running=False)
    ahead = attempts.condemn(next_epoch(by=-1), running=False)
    assert (behind.state, behind.epoch) == ("behind", 3)
    assert (ahead.state, ahead.epoch) == ("ahead", 3)
    assert raw(redis_client) == before


def test_live_production_is_left_until_it_expires(attempts: Attempts, redis_client: redis.Redis) -> None:
    opened(attempts)
    attempts.claim_production(T, "a", **LEASE)
    look = attempts.condemn(T, running=False)
    assert look.state == "live"
    assert look.until == expiry_of(redis_client, "exp") / 1000
    assert 29 < look.until - look.now <= 30
    age(redis_client, 29)
    assert attempts.condemn(T, running=True).state == "live"
    age(redis_client, 2)
    assert attempts.condemn(T, running=True).state == "complete"
    assert record(attempts).p == "lost"


def test_validators_are_condemned_one_by_one(attempts: Attempts, redis_client: redis.Redis) -> None:
    with_candidate(attempts)
    attempts.claim_validators(T, "b", [1], lease=10, hard=100)
    attempts.claim_validators(T, "c", [0], lease=30, hard=100)
    look = attempts.condemn(T, running=True)
    assert look.state == "live"
    assert look.until == expiry_of(redis_client, "x0") / 1000
    age(redis_client, 20)
    assert attempts.condemn(T, running=True).state == "live"
    assert states(attempts) == ["claimed", "undetermined", "open"]
    assert json.loads(record(attempts).validators[1].detail) == {"code": "lost"}
    assert record(attempts).validators[1].tries == 1
    age(redis_client, 20)
    look = attempts.condemn(T, running=True)
    assert (look.state, look.step) == ("idle", "validate")
    attempts.claim_validators(T, "d", [2], **LEASE)
    attempts.give_verdicts(T, "d", {2: ("accepted", "")}, expiry=DAY)
    assert attempts.condemn(T, running=True).state == "complete"


def test_waiting_in_a_queue_is_no_loss(attempts: Attempts, redis_client: redis.Redis) -> None:
    opened(attempts)
    before = raw(redis_client)
    look = attempts.condemn(T, running=True)
    assert (look.state, look.step, look.until) == ("idle", "produce", 0)
    assert raw(redis_client) == before


def test_production_nobody_began_is_void_once_the_run_is_not_running(attempts: Attempts) -> None:
    opened(attempts)
    assert attempts.condemn(T, running=False).state == "complete"
    assert record(attempts).p == "void"
    assert attempts.claim_production(T, "a", **LEASE).held is Held.DONE


def test_candidate_of_an_ended_run_is_still_judged(attempts: Attempts) -> None:
    with_candidate(attempts)
    look = attempts.condemn(T, running=False)
    assert (look.state, look.step) == ("idle", "validate")
    assert record(attempts).p == "candidate"


def test_gone_candidate_completes_whatever_was_claimed(attempts: Attempts, redis_client: redis.Redis) -> None:
    with_candidate(attempts)
    attempts.claim_validators(T, "b", [0], **LEASE)
    redis_client.delete(ENTRIES)
    attempts.claim_validators(T, "c", [1], **LEASE)
    assert attempts.condemn(T, running=True).state == "complete"


# start, read, close


def test_starts_are_counted_for_this_epoch_only(attempts: Attempts) -> None:
    assert attempts.start(T) == 0
    opened(attempts)
    assert [attempts.start(T), attempts.start(T)] == [1, 2]
    assert attempts.start(next_epoch()) == 0
    assert attempts.start(next_epoch(by=-1)) == 0
    assert record(attempts).starts == 2
    assert attempts.condemn(T, running=True).starts == 2


def test_reading_tells_time_by_the_servers_clock(attempts: Attempts) -> None:
    assert attempts.read("r", 7) is None
    opened(attempts)
    before = attempts.now()
    assert before - 0.001 <= record(attempts).now <= attempts.now()


@pytest.mark.parametrize(("epoch", "closed"), [(2, False), (3, True), (4, True)])
def test_closing_deletes_the_record_unless_it_is_of_a_later_epoch(
    attempts: Attempts, redis_client: redis.Redis, epoch: int, closed: bool
) -> None:
    with_candidate(attempts)
    before = raw(redis_client)
    assert attempts.close("r", 7, epoch) is closed
    assert raw(redis_client) == (({}, {}) if closed else before)


def test_closing_compares_epochs_as_numbers(attempts: Attempts) -> None:
    opened(attempts, T._replace(epoch=10))
    assert not attempts.close("r", 7, 9)


def test_closing_without_a_record_deletes_the_entries(attempts: Attempts, redis_client: redis.Redis) -> None:
    redis_client.hset(ENTRIES, "a", b"A")
    assert attempts.close("r", 7, 1)
    assert redis_client.dbsize() == 0


def test_closing_keeps_what_is_retained_for_its_time(attempts: Attempts, redis_client: redis.Redis) -> None:
    with_candidate(attempts)
    redis_client.hset(ENTRIES, mapping={"resp.3": b"R", "find.0": b"F"})
    assert attempts.close("r", 7, 3, retain=[CAND, "find.0", "missing"], retain_for=900)
    assert redis_client.hgetall(ENTRIES) == {CAND.encode(): b"sealed", b"find.0": b"F"}
    assert 890_000 < redis_client.pttl(ENTRIES) <= 900_000
    assert redis_client.exists(RECORD) == 0


@pytest.mark.parametrize("retain_for", [None, 0, -1])
def test_retaining_without_a_time_is_an_error(attempts: Attempts, retain_for: float | None) -> None:
    with pytest.raises(ValueError, match="needs a time"):
        attempts.close("r", 7, 3, retain=["a"], retain_for=retain_for)


# the whole


def test_sealed_entries_pass_through_and_no_plaintext_is_stored(
    attempts: Attempts, redis_client: redis.Redis
) -> None:
    marker = b"PLAINTEXT-MARKER"
    vault = Vault(redis_client, KeyRing.parse(KeyRing.generate()))
    opened(attempts)
    attempts.claim_production(T, "a", **LEASE)
    publish(attempts, entries={CAND: vault.seal("r", 7, CAND, marker)})
    claims = attempts.claim_validators(T, "b", [0], **LEASE)
    assert vault.unseal("r", 7, CAND, claims.sealed[CAND]) == marker
    found = {"find.0": vault.seal("r", 7, "find.0", marker)}
    attempts.give_verdicts(
        T, "b", {0: ("rejected", "")}, entries={0: ("find.0", found["find.0"])}, expiry=DAY
    )
    assert vault.read("r", 7, [CAND, "find.0"]) == {CAND: marker, "find.0": marker}
    for key in redis_client.scan_iter():
        assert marker not in redis_client.dump(key)
    assert "sealed" not in repr(claims)


def test_no_key_is_left_without_expiry_after_any_step(attempts: Attempts, redis_client: redis.Redis) -> None:
    def check() -> None:
        keys = list(redis_client.scan_iter())
        assert keys
        assert all(redis_client.pttl(key) > 0 for key in keys)

    attempts.condemn(T, running=True)
    check()
    token = next_epoch()
    opened(attempts, token, since=4)
    check()
    attempts.claim_production(token, "a", **LEASE)
    check()
    attempts.renew([(token, "a", None)], lease=30)
    check()
    publish(attempts, token)
    check()
    attempts.claim_validators(token, "b", [0], **LEASE)
    check()
    redis_client.delete(ENTRIES)  # emptied in between: findings make the vault's key anew
    attempts.give_verdicts(token, "b", {0: ("rejected", "")}, entries={0: ("find.0", b"F")}, expiry=DAY)
    assert redis_client.exists(ENTRIES)
    check()
    attempts.start(token)
    check()
    attempts.close("r", 7, 5, retain=["find.0"], retain_for=60)
    check()


def test_error_of_redis_is_raised_and_never_taken_for_missing() -> None:
    away = Attempts(redis.Redis(unix_socket_path="/nonexistent/socket", retry=None))
    calls: list[Callable[[], object]] = [
        away.now,
        lambda: opened(away),
        lambda: away.claim_production(T, "a", **LEASE),
        lambda: publish(away),
        lambda: away.claim_validators(T, "a", [0], **LEASE),
        lambda: away.give_verdicts(T, "a", {0: ("accepted", "")}, expiry=DAY),
        lambda: away.renew([(T, "a", None)], lease=30),
        lambda: away.condemn(T, running=True),
        lambda: away.start(T),
        lambda: away.read("r", 7),
        lambda: away.close("r", 7, 3),
    ]
    for call in calls:
        with pytest.raises(redis.ConnectionError):
            call()


def test_error_of_one_renewal_is_raised(attempts: Attempts, redis_client: redis.Redis) -> None:
    redis_client.set(RECORD, "not a hash", ex=60)
    with pytest.raises(redis.ResponseError):
        attempts.renew([(T, "a", None)], lease=30)
