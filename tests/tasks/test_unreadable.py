"""Entries that cannot be opened: moved, changed, or sealed with a key that this worker lacks. Never another's text.

The product's own steps, records, ledger and pulse, without Celery between them: a message is carried by hand, so that a
test can reach into the vault between two steps.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from remand.outcome import Outcome
from remand_tasks.pipelines import Bound
from remand_tasks.pulse import Pulse
from remand_tasks.runtime import Runtime
from remand_tasks.state.rows import Row, Step
from remand_tasks.state.vault import KeyRing, Vault, record_key, sealed_with, vault_key
from remand_tasks.steps import Next, coordinate, produce, validate
from remand_tasks.token import Token

workers = pytest.importorskip("remand_workers")

PIPELINE = """
from remand import (
    SINGLE_RESPONSE_V1, ModelResponse, Pipeline, Policy, Produced, Stage, accept, producer, reject, validator,
)

calls = []
corrections = []
judged = []

@producer(version="1", correction=SINGLE_RESPONSE_V1)
def make(context, correction):
    calls.append((context.item, context.attempt))
    if correction is not None:
        corrections.append((context.item, correction.response, correction.guidance))
    return Produced(f"value of {context.input}", response=ModelResponse(f"response of {context.input}"))

@validator(version="1", execution_retries=1)
def right(value, context):
    judged.append((context.item, value))
    if context.input.startswith("reject") and context.attempt == 1:
        return reject(f"finding about {context.input}")
    return accept()

stage = Stage("make", make, [right], retries=1, backoff=0)
pipeline = Pipeline("moved", version="1", stages=[stage], policy=Policy(semantic_rejection="quarantine"))
bare = Pipeline("bare", version="1", stages=[Stage("make", make, [], retries=1, backoff=0)])
"""

Before = Callable[[Step, Token], None]


class Hand:
    """Carries messages from step to step, in place of the broker and its workers."""

    def __init__(self, client: Any, runtime: Runtime, server: redis.Redis) -> None:
        self.client, self.runtime, self.server = client, runtime, server
        self.messages: list[tuple[Token, Step]] = []
        self.steps: list[tuple[Step, Next]] = []
        self.pulse = Pulse(runtime)
        runtime.sender = self

    def send(self, row: Row, bound: Bound, step: Step, asked: Sequence[int] = ()) -> None:
        self.messages.append((row.token, step))

    def carry(self, before: Before) -> None:
        """One message through one step, and on."""
        token, step = self.messages.pop(0)
        before(step, token)
        if step == "produce":
            after = produce.run(self.runtime, token)
        elif step == "validate":
            after = validate.run(self.runtime, token, None)
        else:
            after = coordinate.run(self.runtime, token)
        self.steps.append((step, after))
        if after is not Next.STOP:
            onward: Step = "coordinate" if step != "produce" or after is Next.DECIDE else "validate"
            self.messages.append((token, onward))

    def run(self, target: str, *inputs: str, before: Before = lambda step, token: None) -> list[Outcome]:
        """A run to its end, and its outcomes."""
        run = self.client.submit(target, inputs, reuse=False)
        ends = time.monotonic() + 30
        while run.status().run.ended_at is None:
            assert time.monotonic() < ends, f"the run ends; steps so far: {self.steps}"
            self.pulse.beat()
            while self.messages:
                self.carry(before)
        return list(run.results())

    def entries(self, token: Token) -> dict[str, bytes]:
        found: dict[bytes, bytes] = self.server.hgetall(vault_key(token.run, token.seq))  # type: ignore[assignment]
        return {name.decode(): sealed for name, sealed in found.items()}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "moved.py").write_text(PIPELINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import moved  # type: ignore[import-not-found]

    yield moved
    sys.modules.pop("moved")


@pytest.fixture
def hand(tmp_path: Path, valkey_url: str, redis_client: redis.Redis, module: Any) -> Iterator[Hand]:
    from remand_workers.app import create_app, create_runtime
    from remand_workers.settings import Settings

    settings = Settings(
        _env_file=None, broker_url="redis://127.0.0.1:1/0", vault_url=valkey_url, vault_keys=KeyRing.generate("k1"),
        ledger_url=f"sqlite:///{tmp_path / 'ledger.db'}", dispatch_lease=0.02, dispatch_lease_max=0.05,
    )  # fmt: skip
    with workers.Client(settings) as client:
        runtime = create_runtime(settings, create_app(settings))
        yield Hand(client, runtime, redis_client)
        runtime.ledger.database.dispose()
        runtime.redis.close()


def keyless(runtime: Runtime) -> Vault:
    """A vault with another key under another name, as of a worker that a rotation left behind."""
    return Vault(runtime.redis, KeyRing.parse(KeyRing.generate("k0")))


# ---------------------------------------------------------------------------------------- texts of another item


@pytest.mark.parametrize(
    "move", ["another item's candidate", "another name of the item", "changed", "nonsense"]
)
def test_a_candidate_that_is_not_the_items_own_is_never_judged_nor_accepted(
    hand: Hand, module: Any, caplog: pytest.LogCaptureFixture, move: str
) -> None:
    moved: list[Token] = []

    def swap(step: Step, token: Token) -> None:
        if step != "validate" or token.seq != 1 or moved:
            return
        moved.append(token)
        mine = hand.entries(token)
        [name] = [name for name in mine if name.startswith("cand.")]
        if move == "another item's candidate":
            theirs = hand.entries(Token(token.run, 0, 0, 1, token.epoch))
            sealed = theirs[name]
        elif move == "another name of the item":
            sealed = mine[name.replace("cand", "resp")]
        else:
            sealed = b"nonsense" if move == "nonsense" else mine[name][:-1] + bytes([mine[name][-1] ^ 1])
        hand.server.hset(vault_key(token.run, token.seq), name, sealed)

    with caplog.at_level(logging.ERROR):
        outcomes = hand.run("moved:pipeline", "alpha", "beta", before=swap)
    assert moved
    assert [outcome.value for outcome in outcomes] == ["value of alpha", "value of beta"]
    assert [outcome.status for outcome in outcomes] == ["accepted", "accepted"]
    assert set(module.judged) == {(0, "value of alpha"), (1, "value of beta")}
    assert module.calls.count((1, 1)) == 2, "it was produced again, in the same attempt"
    assert outcomes[1].attempts == 1
    assert "cannot be opened" in caplog.text
    assert "value of" not in caplog.text


def test_an_entry_that_is_moved_every_time_ends_the_item_and_accepts_nothing(hand: Hand, module: Any) -> None:
    def swap(step: Step, token: Token) -> None:
        if step == "validate" and token.seq == 1:
            for name in [name for name in hand.entries(token) if name.startswith("cand.")]:
                hand.server.hset(vault_key(token.run, token.seq), name, b"\x01\x02k1" + bytes(40))

    outcomes = hand.run("moved:pipeline", "alpha", "beta", before=swap)
    assert [outcome.status for outcome in outcomes] == ["accepted", "failed"]
    assert outcomes[1].reason == "operational_failure"
    assert outcomes[1].value is None
    assert not [value for item, value in module.judged if item == 1]


@pytest.mark.parametrize("target", ["moved:pipeline", "moved:bare"])
def test_the_coordinator_does_not_accept_what_was_moved_after_it_was_judged(
    hand: Hand, module: Any, target: str
) -> None:
    moved: list[Token] = []

    def swap(step: Step, token: Token) -> None:
        if step == "coordinate" and token.seq == 1 and not moved:
            moved.append(token)
            [name] = [name for name in hand.entries(token) if name.startswith("cand.")]
            other = hand.runtime.vault.seal(token.run, 0, name, b'"value of alpha"')
            hand.server.hset(vault_key(token.run, token.seq), name, other)

    outcomes = hand.run(target, "alpha", "beta", before=swap)
    assert moved
    assert [outcome.value for outcome in outcomes] == ["value of alpha", "value of beta"]
    assert module.calls.count((1, 1)) == 2


def test_findings_about_another_item_never_become_a_correction(
    hand: Hand, module: Any, caplog: pytest.LogCaptureFixture
) -> None:
    moved: list[Token] = []

    def swap(step: Step, token: Token) -> None:
        if step == "produce" and token.attempt == 2 and token.seq == 1 and not moved:
            moved.append(token)
            mine = hand.entries(token)
            [name] = [name for name in mine if name.startswith("find.")]
            sealed = hand.runtime.vault.seal(token.run, 0, name, b'[{"text": "finding about reject alpha"}]')
            hand.server.hset(vault_key(token.run, token.seq), name, sealed)

    outcomes = hand.run("moved:pipeline", "reject alpha", "reject beta", before=swap)
    assert moved
    assert [outcome.status for outcome in outcomes] == ["accepted", "accepted"]
    assert [item for item, _, _ in module.corrections] == [0], "item 1 began afresh"
    assert "finding about reject alpha" in module.corrections[0][2]
    assert module.calls.count((1, 2)) == 1
    assert "the correction cannot be opened (tampered)" in caplog.text
    assert "finding" not in caplog.text


# ---------------------------------------------------------------------------------------------- a key that is missing


def test_a_validator_without_the_key_gives_its_claim_back_and_spends_nothing(
    hand: Hand, module: Any, caplog: pytest.LogCaptureFixture
) -> None:
    whole, without = hand.runtime.vault, keyless(hand.runtime)
    given_back = 0

    def lacking(step: Step, token: Token) -> None:
        nonlocal given_back
        hand.runtime.vault = without if step == "validate" and given_back < 3 else whole
        given_back += hand.runtime.vault is without

    [outcome] = hand.run("moved:pipeline", "alpha", before=lacking)
    assert given_back == 3
    assert (outcome.status, outcome.attempts, outcome.generations) == ("accepted", 1, 1)
    [verdict] = outcome.verdicts
    assert (verdict.verdict, verdict.tries) == ("accepted", 1), (
        "the tries that judged nothing are not counted"
    )
    assert [step for step in hand.steps if step == ("validate", Next.STOP)] == [("validate", Next.STOP)] * 3
    assert (
        "the candidate cannot be opened (unknown_key): REMAND_VAULT_KEYS of this worker (k0)" in caplog.text
    )


def test_where_nobody_has_the_key_the_item_still_ends_and_is_no_success(hand: Hand, module: Any) -> None:
    whole, without = hand.runtime.vault, keyless(hand.runtime)

    def lacking(step: Step, token: Token) -> None:
        hand.runtime.vault = without if step == "validate" else whole

    [outcome] = hand.run("moved:pipeline", "alpha", before=lacking)
    assert outcome.status == "incomplete"
    assert not outcome.succeeded
    assert module.judged == []
    [verdict] = outcome.verdicts
    assert (verdict.verdict, verdict.error_type, verdict.error_at) == (
        "undetermined",
        "VaultError",
        "unknown_key",
    )


def test_a_producer_without_the_key_leaves_the_correction_to_one_that_has_it(hand: Hand, module: Any) -> None:
    whole, without = hand.runtime.vault, keyless(hand.runtime)
    given_back = 0

    def lacking(step: Step, token: Token) -> None:
        nonlocal given_back
        hand.runtime.vault = without if step == "produce" and token.attempt == 2 and given_back < 2 else whole
        given_back += hand.runtime.vault is without

    [outcome] = hand.run("moved:pipeline", "reject alpha", before=lacking)
    assert given_back == 2
    assert (outcome.status, outcome.attempts, outcome.generations) == ("accepted", 2, 2)
    assert module.corrections[0][1:] == ("response of reject alpha", module.corrections[0][2])


def test_where_no_producer_has_the_key_the_attempt_begins_afresh(hand: Hand, module: Any) -> None:
    whole, without = hand.runtime.vault, keyless(hand.runtime)
    refused = 0

    def lacking(step: Step, token: Token) -> None:
        nonlocal refused
        locked = step == "produce" and token.attempt == 2 and refused < 9
        hand.runtime.vault = without if locked else whole
        refused += locked

    [outcome] = hand.run("moved:pipeline", "reject alpha", before=lacking)
    assert (outcome.status, outcome.attempts, outcome.generations) == ("accepted", 2, 2)
    assert module.corrections == [], "never a made-up correction"


def test_entries_can_be_counted_by_the_key_that_sealed_them(hand: Hand, redis_client: redis.Redis) -> None:
    seen: list[dict[str, int]] = []

    def look(step: Step, token: Token) -> None:
        if step == "validate":
            redis_client.hset(
                vault_key("other", 1), "cand.1", KeyRing.parse(KeyRing.generate("old")).seal("x", b"y")
            )
            redis_client.hset(vault_key("other", 1), "bad", b"nonsense")
            redis_client.hset(record_key("other", 1), "epoch", b"1")
            seen.append(dict(hand.runtime.vault.used_keys()))

    hand.run("moved:pipeline", "alpha", before=look)
    assert seen == [{"k1": 2, "old": 1, "": 1}]
    assert sealed_with(b"") is None
    assert sealed_with(b"\x01\x09k1") is None
