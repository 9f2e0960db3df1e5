"""A Redis of one process: just the commands that the product's Lua scripts and modules call, on a clock that is set.

The scripts are the product's own, run by a real Lua, and so are the hashes: `redis.call` is Lua as well, and a script
crosses into Python once, with its reply. Nothing expires by itself: a fault of the schedule makes entries go, because
a schedule of a few minutes never reaches an expiry of hours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import lupa.lua51 as lupa

_SERVER = """
local type, unpack, pairs, next = type, unpack, pairs, next
local hashes, clock = {}, 0
-- What a call gives: where its reply is, the fields it wrote (key, field, value), the reply.
local out, last = {}, 1
-- The last hash that was given whole: texts alone, so its parts need no looking at.
local whole

-- `.. ''` makes a text of a number, as Redis does.
local commands = {}

function commands.TIME()
  local part = clock % 1
  return {clock - part, part == 0 and 0 or math.floor(part * 1e6 + 0.5)}
end

function commands.HGET(key, field)
  local hash = hashes[key]
  return hash and hash[field .. ''] or false
end

function commands.HMGET(key, ...)
  local hash, found = hashes[key] or {}, {...}
  for at = 1, #found do found[at] = hash[found[at] .. ''] or false end
  return found
end

function commands.HSET(key, ...)
  local hash, given = hashes[key] or {}, {...}
  hashes[key] = hash
  for at = 1, #given, 2 do
    local field, value = given[at] .. '', given[at + 1] .. ''
    hash[field] = value
    out[last + 1], out[last + 2], out[last + 3] = key, field, value
    last = last + 3
  end
  return #given / 2
end

function commands.HDEL(key, ...)
  local hash = hashes[key]
  if not hash then return 0 end
  local fields = {...}
  for at = 1, #fields do hash[fields[at] .. ''] = nil end
  if next(hash) == nil then hashes[key] = nil end
  return 1
end

function commands.HEXISTS(key, field)
  local hash = hashes[key]
  return hash and hash[field .. ''] and 1 or 0
end

function commands.HINCRBY(key, field, by)
  local hash = hashes[key] or {}
  hashes[key] = hash
  local value = (tonumber(hash[field .. '']) or 0) + by
  hash[field .. ''] = value .. ''
  return value
end

function commands.HGETALL(key)
  local flat, size = {}, 0
  for field, value in pairs(hashes[key] or {}) do
    flat[size + 1], flat[size + 2] = field, value
    size = size + 2
  end
  whole = flat
  return flat
end

function commands.HKEYS(key)
  local fields = {}
  for field in pairs(hashes[key] or {}) do fields[#fields + 1] = field end
  return fields
end

function commands.KEYS()
  local keys = {}
  for key in pairs(hashes) do keys[#keys + 1] = key end
  return keys
end

function commands.EXISTS(key) return hashes[key] and 1 or 0 end

function commands.UNLINK(...)
  local gone = 0
  for _, key in ipairs({...}) do
    if hashes[key] then gone = gone + 1 end
    hashes[key] = nil
  end
  return gone
end

commands.DEL = commands.UNLINK

function commands.PEXPIRE(_, milliseconds)
  assert(tonumber(milliseconds) > 0, 'an expiry must be positive')
  return 1
end

redis = {
  call = function(command, ...) return commands[command](...) end,
  error_reply = function(message) error(message, 0) end,
}

-- A reply is laid out flat, which costs least to cross: a table is its kind (whether it holds tables), size, parts.
local function lay(value, at)
  if type(value) ~= 'table' then
    out[at + 1] = value or nil
    return at + 1
  end
  local kind, size, nested = at + 1, #value, false
  out[at + 2] = size
  at = at + 2
  if value == whole then
    for k = 1, size do out[at + k] = value[k] end
    out[kind] = false
    return at + size
  end
  for k = 1, size do
    local part = value[k]
    if type(part) == 'table' then
      nested, at = true, lay(part, at)
    else
      at = at + 1
      out[at] = part or nil
    end
  end
  out[kind] = nested
  return at
end

local function answer(value)
  out[1] = last
  return unpack(out, 1, lay(value, last))
end

return {
  reset = function() hashes = {} end,
  call = function(command, ...)
    last = 1
    return answer(commands[command](...))
  end,
  script = function(body)
    return function(now, record, vault, ...)
      clock, last = now, 1
      return answer(body({record, vault}, {...}))
    end
  end,
}
"""


_LUA = lupa.LuaRuntime(encoding=None)
_SERVE = _LUA.execute(_SERVER.encode())
_RESET, _CALL, _SCRIPT = (_SERVE[name] for name in (b"reset", b"call", b"script"))


@functools.cache
def _compile(script: str) -> Any:
    return _SCRIPT(_LUA.execute(b"return function(KEYS, ARGV)\n" + script.encode() + b"\nend"))


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _reply(flat: tuple[Any, ...], at: int) -> tuple[Any, int]:
    """The value that is laid out from `at` on, and where the next one is."""
    kind = flat[at]
    if kind is not True and kind is not False:
        return kind, at + 1
    size = flat[at + 1]
    at += 2
    if kind is False:
        return list(flat[at : at + size]), at + size
    parts = []
    for _ in range(size):
        part, at = _reply(flat, at)
        parts.append(part)
    return parts, at


class MemoryRedis:
    """Hashes of bytes. `now` is in seconds; `before` is called ahead of every command, so that others may run.

    There is one server: making another empties it.
    """

    def __init__(self, before: Callable[[str], None]) -> None:
        self.now = 0.0
        self._before = before
        self.watch: Callable[[bytes, bytes, bytes], None] = lambda key, field, value: None
        _RESET()

    def _call(self, command: bytes, *given: Any) -> Any:
        return _reply(_CALL(command, *map(_bytes, given)), 1)[0]

    # ------------------------------------------------------------------------------------------ what modules call

    def register_script(self, script: str) -> _Script:
        """A script as redis-py registers it."""
        return _Script(self, _compile(self.mutated(script)))

    def time(self) -> tuple[int, int]:
        """The server's time."""
        return int(self.now), round(self.now % 1 * 1e6)

    def hkeys(self, key: str) -> list[bytes]:
        """Fields of a hash."""
        self._before("redis")
        return list(self._call(b"HKEYS", key))

    def hmget(self, key: str, names: Sequence[str]) -> list[bytes | None]:
        """Values of a hash."""
        self._before("redis")
        return list(self._call(b"HMGET", key, *names))

    def scan_iter(self, match: Any, count: int | None = None) -> Iterable[bytes]:
        """Keys that begin as `match` does before its star."""
        prefix = _bytes(match).split(b"*")[0].replace(b"\\", b"")
        return [key for key in self._call(b"KEYS") if key.startswith(prefix)]

    def exists(self, key: str) -> bool:
        """Whether there is such a key."""
        return bool(self._call(b"EXISTS", key))

    def unlink(self, *keys: Any) -> int:
        """Delete keys."""
        return int(self._call(b"UNLINK", *keys))

    # ------------------------------------------------------------------------------------------------- scripts

    def run(self, script: Any, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """One script, whole: nobody else runs meanwhile."""
        self._before("redis")
        record, vault = keys
        given = [value if type(value) is bytes else str(value).encode() for value in args]
        answer = script(self.now, record.encode(), vault.encode(), *given)
        at = answer[0]
        for one in range(1, at, 3):
            self.watch(answer[one], answer[one + 1], answer[one + 2])
        return answer[at] if len(answer) == at + 1 else _reply(answer, at)[0]

    def mutated(self, script: str) -> str:
        """The script as it is; a rule that is taken out changes it here."""
        return script

    # Renewals go through a pipeline of EVALSHA calls.

    def pipeline(self, transaction: bool = True) -> _Pipeline:
        """A pipeline of scripts."""
        return _Pipeline(self)


class _Script:
    def __init__(self, redis: MemoryRedis, compiled: Any) -> None:
        self._redis = redis
        self.sha = compiled

    def __call__(self, keys: Sequence[str] = (), args: Sequence[Any] = ()) -> Any:
        return self._redis.run(self.sha, keys, args)


class _Pipeline:
    def __init__(self, redis: MemoryRedis) -> None:
        self._redis = redis
        self._calls: list[tuple[Any, int, tuple[Any, ...]]] = []

    def __enter__(self) -> _Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.clear()

    def evalsha(self, sha: Any, count: int, *rest: Any) -> None:
        """Queue a script."""
        self._calls.append((sha, count, rest))

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Run what was queued."""
        return [self._redis.run(sha, rest[:count], rest[count:]) or 0 for sha, count, rest in self._calls]
