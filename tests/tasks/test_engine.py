"""A ledger URL that cannot be used is refused with the setting's name and without the URL."""

from __future__ import annotations

import pytest

from remand_tasks.state.engine import Database, LedgerError


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("sqlite+pysqlite:///", "in memory"),
        ("sqlite:///file:ledger?mode=memory&cache=shared&uri=true", "in memory"),
        ("mysql://user:secret-word@host/name", "sqlite or postgresql"),
        ("secret-word", "not a database URL"),
    ],
)
def test_a_url_that_no_ledger_can_have_is_refused_by_the_settings_name(url: str, said: str) -> None:
    with pytest.raises(LedgerError, match=said) as caught:
        Database(url)
    assert str(caught.value).startswith("REMAND_LEDGER_URL")
    assert "secret-word" not in str(caught.value)
