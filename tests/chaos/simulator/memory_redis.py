"""A Redis of one process: just the commands that the product's Lua scripts and modules call, on a clock that is set.

The scripts are the product's own, run by a real Lua; only `redis.call` is ours. Nothing expires by itself: a fault
of the schedule makes entries go, because a schedule of a few minutes never reaches an expiry of hours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import lupa.lua51 as lupa


def _bytes(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, float):
        return b"%d" % value if value == int(value) else repr(value).encode()
    return str(value).encode()


_LUA = lupa.LuaRuntime(unpack_returned_tuples=False, encoding=None)


@functools.cache
def _compile(script: str) -> Any:
    return _LUA.execute(b"return function(KEYS, ARGV)\n" + script.encode() + b"\nend")


class MemoryRedis:
    """Hashes of bytes. `now` is in seconds; `before` is called ahead of every command, so that others may run."""

    def __init__(self, before: Callable[[str], None]) -> None:
        self.now = 0.0
        self.hashes: dict[bytes, dict[bytes, bytes]] = {}
        self._before = before
        self._lua = _LUA
        _LUA.globals()[b"redis"] = _LUA.table_from({b"call": self._call, b"error_reply": self._error})
        self.watch: Callable[[bytes, bytes, bytes], None] = lambda key, field, value: None

    # ------------------------------------------------------------------------------------------ what modules call

    def register_script(self, script: str) -> _Script:
        """A script as redis-py registers it."""
        return _Script(self, script)

    def time(self) -> tuple[int, int]:
        """The server's time."""
        return int(self.now), round(self.now % 1 * 1e6)

    def hkeys(self, key: str) -> list[bytes]:
        """Fields of a hash."""
        self._before("redis")
        return list(self.hashes.get(_bytes(key), {}))

    def hmget(self, key: str, names: Sequence[str]) -> list[bytes | None]:
        """Values of a hash."""
        self._before("redis")
        found = self.hashes.get(_bytes(key), {})
        return [found.get(_bytes(name)) for name in names]

    def scan_iter(self, match: Any, count: int | None = None) -> Iterable[bytes]:
        """Keys that begin as `match` does before its star."""
        prefix = _bytes(match).split(b"*")[0].replace(b"\\", b"")
        return [key for key in list(self.hashes) if key.startswith(prefix)]

    def unlink(self, *keys: Any) -> int:
        """Delete keys."""
        return sum(self.hashes.pop(_bytes(key), None) is not None for key in keys)

    # ------------------------------------------------------------------------------------------------- scripts

    def run(self, script: str, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        """One script, whole: nobody else runs meanwhile."""
        self._before("redis")
        function = _compile(self.mutated(script))
        table = self._lua.table_from
        return self._python(function(table([_bytes(k) for k in keys]), table([_bytes(a) for a in args])))

    def mutated(self, script: str) -> str:
        """The script as it is; a rule that is taken out changes it here."""
        return script

    def _python(self, value: Any) -> Any:
        if value is None or value is False:
            return None
        if value is True:
            return 1
        if isinstance(value, int | float):
            return int(value)
        if isinstance(value, bytes):
            return value
        return [self._python(value[index]) for index in range(1, len(value) + 1)]

    def _error(self, message: bytes) -> None:
        raise RuntimeError(message.decode())

    def _call(self, command: bytes, *args: Any) -> Any:
        return getattr(self, "_" + command.decode().lower())(*args)

    def _time(self) -> Any:
        seconds, micros = self.time()
        return self._lua.table_from([seconds, micros])

    def _hash(self, key: bytes) -> dict[bytes, bytes]:
        return self.hashes.get(key, {})

    def _hget(self, key: bytes, field: Any) -> Any:
        return self._hash(key).get(_bytes(field), False)

    def _hset(self, key: bytes, *pairs: Any) -> int:
        target = self.hashes.setdefault(key, {})
        for at in range(0, len(pairs), 2):
            target[_bytes(pairs[at])] = _bytes(pairs[at + 1])
            self.watch(key, _bytes(pairs[at]), target[_bytes(pairs[at])])
        return 1

    def _hmget(self, key: bytes, *fields: Any) -> Any:
        found = self._hash(key)
        return self._lua.table_from([found.get(_bytes(field), False) for field in fields])

    def _hdel(self, key: bytes, *fields: Any) -> int:
        found = self._hash(key)
        for field in fields:
            found.pop(_bytes(field), None)
        if not found:
            self.hashes.pop(key, None)
        return 1

    def _hexists(self, key: bytes, field: Any) -> int:
        return int(_bytes(field) in self._hash(key))

    def _hincrby(self, key: bytes, field: Any, by: Any) -> int:
        target = self.hashes.setdefault(key, {})
        value = int(target.get(_bytes(field), b"0")) + int(by)
        target[_bytes(field)] = b"%d" % value
        return value

    def _hgetall(self, key: bytes) -> Any:
        return self._lua.table_from([part for pair in self._hash(key).items() for part in pair])

    def _hkeys(self, key: bytes) -> Any:
        return self._lua.table_from(list(self._hash(key)))

    def _del(self, *keys: bytes) -> int:
        return self.unlink(*keys)

    _unlink = _del

    def _pexpire(self, key: bytes, milliseconds: Any) -> int:
        if float(milliseconds) <= 0:
            raise AssertionError("an expiry must be positive")
        return 1

    # Renewals go through a pipeline of EVALSHA calls.

    def pipeline(self, transaction: bool = True) -> _Pipeline:
        """A pipeline of scripts."""
        return _Pipeline(self)

    def script_load(self, script: str) -> str:
        """A script's name is its text here."""
        return script


class _Script:
    def __init__(self, redis: MemoryRedis, script: str) -> None:
        self._redis = redis
        self.sha = script

    def __call__(self, keys: Sequence[Any] = (), args: Sequence[Any] = ()) -> Any:
        return self._redis.run(self.sha, keys, args)


class _Pipeline:
    def __init__(self, redis: MemoryRedis) -> None:
        self._redis = redis
        self._calls: list[tuple[str, int, tuple[Any, ...]]] = []

    def __enter__(self) -> _Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.clear()

    def evalsha(self, sha: str, count: int, *rest: Any) -> None:
        """Queue a script."""
        self._calls.append((sha, count, rest))

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Run what was queued."""
        return [self._redis.run(sha, rest[:count], rest[count:]) or 0 for sha, count, rest in self._calls]
