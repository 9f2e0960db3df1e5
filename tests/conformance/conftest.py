"""The drivers of the conformance scenarios. `@pytest.mark.row("V1")` says which row a test is, and so its drivers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_FOLDER = str(Path(__file__).resolve().parent)
if _FOLDER not in sys.path:
    sys.path.insert(0, _FOLDER)

from conformance_kit.drivers import Driver, Local, Workers  # noqa: E402
from conformance_kit.registries import Model  # noqa: E402
from conformance_kit.rows import LOCAL, ROWS, WORKERS  # noqa: E402
from conformance_kit.server import Server  # noqa: E402
from conformance_kit.workers import Stack  # noqa: E402


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker."""
    config.addinivalue_line("markers", "row(number): the row of the conformance table that a test stands for")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A scenario runs once on each driver of its row."""
    if "driver" not in metafunc.fixturenames:
        return
    (mark,) = metafunc.definition.iter_markers("row")
    row = ROWS[mark.args[0]]
    names = [
        pytest.param(name, marks=[pytest.mark.workers] if name == WORKERS else []) for name in row.drivers
    ]
    metafunc.parametrize("driver", names, indirect=True)


@pytest.fixture(scope="session")
def model_server() -> Iterator[Server]:
    """The scripted model, which producers and judges find by their environment."""
    with Server() as server, pytest.MonkeyPatch.context() as patched:
        patched.setenv("REMAND_MODEL", "scripted")
        patched.setenv("REMAND_MODEL_BASE_URL", server.model.base_url)
        patched.setenv("REMAND_MODEL_API_KEY", "none")
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            patched.delenv(name, raising=False)
        yield server


@pytest.fixture(scope="session")
def registry_model() -> Iterator[Model]:
    """The model of registries, which workers find by their environment."""
    with Model().serving() as model:
        yield model


@pytest.fixture(scope="session")
def stack(
    model_server: Server, registry_model: Model, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """Two worker processes with different hash seeds, shared by the scenarios of a session."""
    with Stack(tmp_path_factory.mktemp("stack") / "shared", count=2) as running:
        yield running


@pytest.fixture
def driver(
    request: pytest.FixtureRequest, model_server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Driver:
    """The driver under test."""
    root = tmp_path_factory.getbasetemp() / "notes"
    if request.param == LOCAL:
        return Local(model_server, root, LOCAL)
    return Workers(model_server, root, WORKERS, stack=request.getfixturevalue("stack"))


@pytest.fixture
def own_stack(
    model_server: Server, registry_model: Model, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Workers]]:
    """Makes a driver on services and workers of its own, for scenarios that break or replace them."""
    running: list[Stack] = []

    def make(**options: Any) -> Workers:
        stack = Stack(tmp_path_factory.mktemp("stack") / "own", **options)
        running.append(stack.__enter__())
        return Workers(model_server, tmp_path_factory.getbasetemp() / "notes", WORKERS, stack=stack)

    yield make
    for stack in running:
        stack.__exit__()
