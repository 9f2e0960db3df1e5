"""Stacks and the process that starts workers, once a test session; each test gets the ground to run scenarios on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

_FOLDER = str(Path(__file__).resolve().parent)
if _FOLDER not in sys.path:
    sys.path.insert(0, _FOLDER)
# The pipeline is fingerprinted with its server's address; every run names its own.
os.environ.setdefault("REMAND_MODEL_BASE_URL", "http://127.0.0.1:9/v1")

from chaos_kit.checks import Tally  # noqa: E402
from chaos_kit.crew import Zygote  # noqa: E402
from chaos_kit.scenarios import Ground  # noqa: E402
from chaos_kit.services import Missing  # noqa: E402
from chaos_kit.stacks import NAMES, Stack, stack  # noqa: E402


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker."""
    config.addinivalue_line("markers", "chaos: long; runs only where `-m` asks for it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long ones out of the ordinary suite."""
    if "chaos" in config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("chaos") is not None]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()


@pytest.fixture(scope="session")
def stacks() -> Iterator[Callable[[str], Stack]]:
    """Starts a stack when the first test asks for it, and keeps it for the others."""
    made: dict[str, Stack] = {}
    missing: dict[str, str] = {}
    with ExitStack() as started:

        def get(name: str) -> Stack:
            if name not in made and name not in missing:
                try:
                    made[name] = started.enter_context(stack(name))
                except Missing as error:
                    missing[name] = str(error)
            if name in missing:
                pytest.skip(f"NOT PROVED on {name}: {missing[name]}")
            return made[name]

        yield get


@pytest.fixture(params=NAMES)
def ground(request: pytest.FixtureRequest, stacks: Callable[[str], Stack], zygote: Zygote) -> Ground:
    """Where a scenario runs: once on each stack."""
    return Ground(stacks(request.param), zygote)


@pytest.fixture
def holds() -> Callable[[Tally], None]:
    """Fails with every promise that was broken."""

    def check(tally: Tally) -> None:
        assert not tally.problems, "\n".join([f"{tally.fault} on {tally.stack}", *tally.problems])
        assert (tally.lost, tally.closed_twice, tally.over_budget) == (0, 0, 0)

    return check
