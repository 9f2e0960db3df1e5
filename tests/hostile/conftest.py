"""A live worker and a model that replies by script, shared by a module's tests."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_FOLDER = str(Path(__file__).resolve().parent)
if _FOLDER not in sys.path:
    sys.path.insert(0, _FOLDER)

from hostile_kit.live import Live  # noqa: E402
from hostile_kit.replies import REPLIES  # noqa: E402

from remand.testing import RecordedRequest, Reply, ScriptedModel  # noqa: E402


def _reply(request: RecordedRequest) -> Reply:
    found = re.search(r"\[\[(\w+)\]\]", str(request.messages[0]["content"]))
    assert found is not None
    return REPLIES[found[1]].reply()


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Services and a worker."""
    variables = {"REMAND_MODEL_API_KEY": "none", "NO_PROXY": "*", "no_proxy": "*"}
    with ScriptedModel(_reply, keep=1) as model:
        variables["REMAND_MODEL_BASE_URL"] = model.base_url
        with Live(tmp_path_factory.mktemp("live"), variables) as running:
            yield running
        assert not model.errors
