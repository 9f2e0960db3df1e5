"""Whatever a model's server sends, the item closes with a code, its neighbours are served, and memory stays bounded."""

from __future__ import annotations

import pytest
from hostile_kit.live import Live
from hostile_kit.replies import MARKER, REPLIES

pytestmark = [pytest.mark.workers, pytest.mark.timeout(180)]

MEGABYTE = 1024 * 1024


def test_every_hostile_reply_ends_its_item_with_a_code_and_nothing_else(live: Live) -> None:
    pid = live.process.pid
    ended = dict(zip(REPLIES, live.run({"do": name} for name in REPLIES), strict=True))
    found = {name: (outcome.status.value, outcome.code) for name, outcome in ended.items()}
    assert found == {name: (expected.status, expected.code) for name, expected in REPLIES.items()}
    assert live.process.poll() is None
    assert live.process.pid == pid
    assert MARKER not in live.log()
    assert ended["nul"].value.note == MARKER + "\0"


def test_fifty_megabytes_are_not_read_to_the_end(live: Live) -> None:
    live.run([{"do": "good"}])
    live.reset_peak()
    before = live.memory()
    (outcome,) = live.run([{"do": "large"}])
    assert outcome.code == "too_large"
    grown = live.memory() - before
    assert grown < 100 * MEGABYTE, f"{grown / MEGABYTE:.0f} MB"
