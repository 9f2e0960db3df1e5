"""An error of the database says which statement failed, and nothing of what was written with it."""

from __future__ import annotations

import pickle
import traceback
from pathlib import Path

import pytest
from privacy_kit.texts import kinds_in, planted
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from remand_tasks.state.engine import Database
from remand_workers.surfaces import Kind


def test_parameters_are_in_no_form_of_the_error(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'ledger.db'}")
    with pytest.raises(OperationalError) as caught, database.write() as connection:
        connection.execute(text("INSERT INTO nowhere VALUES (:body)"), {"body": planted(Kind.INPUT)})
    database.dispose()
    error = caught.value
    shown = [str(error), repr(error), repr(vars(error)), *traceback.format_exception(error)]
    assert "INSERT INTO nowhere" in shown[0]
    assert not kinds_in("\n".join(shown).encode())
    assert not kinds_in(pickle.dumps(error))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
