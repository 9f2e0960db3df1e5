"""A broker that keeps its connections open and answers nothing holds nobody for ever."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from chaos_kit.stacks import POSTGRES, Stack
from kombu.exceptions import OperationalError

from remand_tasks.routing import COORDINATE
from remand_workers import app as wiring


@pytest.mark.parametrize("retry", [True, False])
def test_a_message_that_is_never_confirmed_is_given_up(
    stacks: Callable[[str], Stack], monkeypatch: pytest.MonkeyPatch, retry: bool
) -> None:
    stack = stacks(POSTGRES)
    monkeypatch.setattr(wiring, "PATIENCE", 0.5)
    app = wiring.create_app(stack.settings)
    task = app.signature("remand.coordinate", args=("r/0/0/1/1",), options={"queue": COORDINATE})
    with ThreadPoolExecutor(1) as pool:
        task.apply_async()
        with stack.broker.server.frozen():
            sent = pool.submit(task.apply_async, retry=retry)
            assert isinstance(sent.exception(timeout=30), OperationalError)
        task.apply_async()
    app.close()
    stack.put_back()
