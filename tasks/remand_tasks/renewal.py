"""Keeps the claims of this process alive: one thread, one round trip for all of them, nothing past a hard end."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import RedisError

from .state.attempts import Attempts
from .token import Token

log = logging.getLogger("remand.tasks")


class Renewal:
    """Renews every claim held inside `holding`, each `every` seconds, a third of `lease` at most."""

    def __init__(self, attempts: Attempts, *, lease: float, every: float) -> None:
        if every > lease / 3:
            raise ValueError("claims must be renewed at least three times a lease")
        self._attempts = attempts
        self._lease = lease
        self._every = every
        self._held: set[tuple[Token, str, int | None]] = set()
        self._lock = threading.Lock()
        self._pid = 0

    @contextmanager
    def holding(self, token: Token, owner: str, validator: int | None = None) -> Iterator[None]:
        """Keep this claim alive while the block runs."""
        claim = (token, owner, validator)
        with self._lock:
            self._held.add(claim)
            if self._pid != os.getpid():
                self._pid = os.getpid()
                self._held = {claim}
                threading.Thread(target=self._run, name="remand-renewal", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._held.discard(claim)

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(self._every):
            with self._lock:
                held = list(self._held)
            if not held:
                continue
            try:
                self._attempts.renew(held, lease=self._lease)
            except (RedisError, OSError) as error:
                # The claims run on until they expire; the next round may come through.
                log.warning("claims could not be renewed: %s", type(error).__name__)
