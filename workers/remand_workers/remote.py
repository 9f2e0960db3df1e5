"""What a worker says of itself when it is asked over the broker: its clock, what it accepts, the names of its keys.

One command of Celery's remote control, for `remand doctor`. It tells names of vault keys, which stand in front of every
sealed entry anyway, and nothing that was made from a key.
"""

from __future__ import annotations

import time
from typing import Any, Final

from celery.worker.control import Panel, inspect_command

from remand.errors import RemandError
from remand_tasks.state.vault import KeyRing

COMMAND: Final = "remand_facts"


def facts(state: Any, **_: Any) -> dict[str, Any]:
    """Epoch seconds by this machine's clock, accepted content types, ids of vault keys, the sealing one first."""
    settings = state.app.conf.remand_settings
    keys: list[str] = []
    if settings.vault_keys is not None:
        try:
            keys = list(KeyRing.parse(settings.vault_keys.get_secret_value()).ids)
        except RemandError:
            keys = []
    accepted = {*state.app.conf.accept_content, *(state.app.conf.result_accept_content or ())}
    return {"now": time.time(), "accepts": sorted(accepted), "keys": keys}


def define() -> None:
    """Make the command known to workers of this process. Defining it twice is defining it once."""
    if COMMAND not in Panel.data:
        inspect_command(name=COMMAND)(facts)
