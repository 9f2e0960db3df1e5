"""Thousands of schedules break nothing; without any one rule of the protocol, some do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from simulator.mutations import RULES

HERE = Path(__file__).parent
SCHEDULES = {"normal": 700, "redrive": 150, "poison": 150, "restore": 150}


def simulate(program: str, *arguments: str) -> Any:
    """Run something of the simulator's in a process of its own: it replaces parts of the product while it runs."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=HERE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


SEARCH = """
import json, sys
from simulator.__main__ import chunk
count, mode, rules, least = int(sys.argv[1]), sys.argv[2], tuple(sys.argv[3:-1]), int(sys.argv[-1])
found = {}
for first in range(0, count, least):
    *_, found = chunk((first, least, mode, rules))
    if found and rules:
        break
print(json.dumps(found))
"""


@pytest.mark.parametrize("mode", SCHEDULES)
@pytest.mark.timeout(300)
def test_no_schedule_breaks_an_invariant(mode: str) -> None:
    count = str(SCHEDULES[mode])
    found = simulate(SEARCH, count, mode, count)
    assert not found, f"replay with `python -m simulator replay SEED --mode {mode}` in tests/chaos: {found}"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.timeout(300)
def test_without_a_rule_of_the_protocol_some_schedule_breaks(rule: str) -> None:
    found = simulate(SEARCH, "6000", RULES[rule].mode, rule, "50")
    assert found, f"nothing broke without the rule that {RULES[rule].says}"


def test_a_schedule_replays_to_the_letter() -> None:
    program = (
        "from simulator.__main__ import main; raise SystemExit(main(['replay', '7', '--mode', 'normal']))"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", program], cwd=HERE, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert told[0] == told[1]
    assert "MODEL CALL" in told[0]
