"""One telling of the whole story for all tests of this folder, whichever test processes they run in."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

import pytest

_FOLDER = str(Path(__file__).resolve().parent)
if _FOLDER not in sys.path:
    sys.path.insert(0, _FOLDER)

from privacy_kit.story import Story  # noqa: E402


@pytest.fixture(scope="session")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what every surface held. With several test processes the first makes it and the others wait."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder, told, failed = (shared / name for name in ("privacy", "privacy-told", "privacy-failed"))
    with open(shared / "privacy.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if failed.exists():
            pytest.fail("the story could not be told; see the failure in the other test process")
        if not told.exists():
            failed.touch()
            Story(folder).tell()
            failed.unlink()
            told.touch()
    return folder
