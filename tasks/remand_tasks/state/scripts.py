"""The Lua scripts behind the attempt record: one script is one atomic step, guarded by what it expects to find.

Every script gets two keys with one hash tag, the record and the item's vault hash, and reads the one clock, Redis
`TIME`, itself. Times are whole milliseconds. A guard that fails changes nothing. No script looks into a vault entry
(it only moves sealed bytes), calls anything random, or leaves a key without an expiry.

Fields of a record: `epoch`, `since`, `n` (validators), `p` (production) with `owner`, `exp`, `hard` while claimed,
`cand` (vault entry under judgement), `starts`, `back` (an epoch, and how often claims were given back in it),
`f:<name>` (facts), and for validator i from 0 `v<i>` (state), `t<i>` (tries), `e<i>` (detail), and `o<i>`, `x<i>`,
`h<i>` (owner, expiry, hard end) while claimed.

| script | step | guard |
|---|---|---|
| OPEN | absent or older epoch → this epoch | absent, or the record's epoch < mine |
| CLAIM_PRODUCTION | open → claimed | epoch; open |
| PUBLISH | claimed → what the producer gave | epoch; claimed; owner |
| CLAIM_VALIDATORS | open → claimed, tries + 1; candidate → gone | epoch; candidate; its entry exists; none held |
| GIVE_VERDICTS | claimed → accepted, rejected, undetermined | epoch; claimed; owner |
| GIVE_BACK | claimed → open, tries - 1; entries dropped | epoch; claimed; owner; given back less than `most` times |
| RENEW | expiry moved | epoch; claimed; owner; not expired; before the hard end |
| CONDEMN | claimed → lost, undetermined; open → void; absent → norec | epoch; expired; run not running; absent |
| START | starts + 1 | epoch |
| READ | nothing | |
| CLOSE | deleted | absent, or the record's epoch <= mine |
"""

from __future__ import annotations

from typing import Final

_PRELUDE: Final = """
local rec, vault = KEYS[1], KEYS[2]
local LOST = '{"code":"lost"}'

local function get(field) return redis.call('HGET', rec, field) end

local function set(...) redis.call('HSET', rec, ...) end

local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

local function ms(number) return string.format('%.0f', number) end

local function entry_exists(name) return redis.call('HEXISTS', vault, name) == 1 end

local function expire(milliseconds)
  redis.call('PEXPIRE', rec, milliseconds)
  redis.call('PEXPIRE', vault, milliseconds)
end

local function entries(first)
  if #ARGV < first then return {} end
  return redis.call('HMGET', vault, unpack(ARGV, first))
end

local function release(i, state, detail)
  set('v' .. i, state)
  if detail == '' then redis.call('HDEL', rec, 'e' .. i) else set('e' .. i, detail) end
  redis.call('HDEL', rec, 'o' .. i, 'x' .. i, 'h' .. i)
end

local function is_current(epoch) return get('epoch') == epoch end
"""

# epoch, since, validators, expiry, fallback or '', asked validators...
OPEN: Final = (
    _PRELUDE
    + """
local epoch, since, n, fallback = ARGV[1], ARGV[2], ARGV[3], ARGV[5]
local old = redis.call('HMGET', rec, 'epoch', 'p', 'since', 'cand', 'n')
if old[1] and tonumber(old[1]) >= tonumber(epoch) then return 0 end
local kept = old[2] == 'candidate' and old[3] == since and old[5] == n
  and (fallback == '' or old[4] == fallback) and entry_exists(old[4])
if kept then
  local asked = {}
  for k = 6, #ARGV do asked[ARGV[k]] = true end
  for i = 0, tonumber(n) - 1 do
    local state = get('v' .. i)
    if state == 'claimed' then
      release(i, 'undetermined', LOST)
      state = 'undetermined'
    end
    if state == 'undetermined' and asked[tostring(i)] then release(i, 'open', '') end
  end
  set('epoch', epoch, 'starts', '0')
else
  local production, candidate = 'open', ''
  if fallback ~= '' then
    if entry_exists(fallback) then production, candidate = 'candidate', fallback else production = 'gone' end
  end
  redis.call('DEL', rec)
  set('epoch', epoch, 'since', since, 'n', n, 'p', production, 'cand', candidate, 'starts', '0')
  for i = 0, tonumber(n) - 1 do set('v' .. i, 'open', 't' .. i, '0') end
end
expire(ARGV[4])
return 1
"""
)

# epoch, owner, lease, hard, wanted entries...
CLAIM_PRODUCTION: Final = (
    _PRELUDE
    + """
if not is_current(ARGV[1]) then return {'stale'} end
local production = get('p')
if production == 'claimed' then return {'held'} end
if production ~= 'open' then return {'done'} end
local now = clock()
local hard = now + ARGV[4]
set('p', 'claimed', 'owner', ARGV[2], 'exp', ms(math.min(now + ARGV[3], hard)), 'hard', ms(hard))
return {'claimed', entries(5)}
"""
)

# epoch, owner, production, candidate or '', expiry, count of facts, count of entries,
# fact name, value..., entry name, sealed..., dropped names...
PUBLISH: Final = (
    _PRELUDE
    + """
local state = redis.call('HMGET', rec, 'epoch', 'p', 'owner')
if state[1] ~= ARGV[1] or state[2] ~= 'claimed' or state[3] ~= ARGV[2] then return 0 end
set('p', ARGV[3], 'cand', ARGV[4])
redis.call('HDEL', rec, 'owner', 'exp', 'hard')
local at = 8
for _ = 1, tonumber(ARGV[6]) do
  set('f:' .. ARGV[at], ARGV[at + 1])
  at = at + 2
end
local dropped = at + 2 * tonumber(ARGV[7])
if #ARGV >= dropped then redis.call('HDEL', vault, unpack(ARGV, dropped)) end
if dropped > at then redis.call('HSET', vault, unpack(ARGV, at, dropped - 1)) end
expire(ARGV[5])
return 1
"""
)

# epoch, owner, lease, hard, count of validators, validators..., wanted entries...
CLAIM_VALIDATORS: Final = (
    _PRELUDE
    + """
if not is_current(ARGV[1]) then return {'stale'} end
local production = get('p')
if production == 'open' or production == 'claimed' then return {'held'} end
if production ~= 'candidate' then return {'done'} end
local candidate = get('cand')
if not entry_exists(candidate) then
  set('p', 'gone')
  return {'done'}
end
local last = 5 + tonumber(ARGV[5])
local open = {}
for k = 6, last do
  local state = get('v' .. ARGV[k])
  if not state then return redis.error_reply('REMAND the record has no such validator') end
  if state == 'claimed' then return {'held'} end
  if state == 'open' then open[#open + 1] = ARGV[k] end
end
if #open == 0 then return {'done'} end
local now = clock()
local hard = now + ARGV[4]
local exp = ms(math.min(now + ARGV[3], hard))
for _, i in ipairs(open) do
  set('v' .. i, 'claimed', 'o' .. i, ARGV[2], 'x' .. i, exp, 'h' .. i, ms(hard))
  redis.call('HINCRBY', rec, 't' .. i, 1)
end
return {'claimed', candidate, open, redis.call('HGET', vault, candidate), entries(last + 1)}
"""
)

# epoch, owner, expiry, then for each verdict: validator, state, detail, entry name or '', sealed
GIVE_VERDICTS: Final = (
    _PRELUDE
    + """
if not is_current(ARGV[1]) then return {} end
local taken = {}
for at = 4, #ARGV, 5 do
  local i = ARGV[at]
  local claim = redis.call('HMGET', rec, 'v' .. i, 'o' .. i)
  if claim[1] == 'claimed' and claim[2] == ARGV[2] then
    release(i, ARGV[at + 1], ARGV[at + 2])
    if ARGV[at + 3] ~= '' then redis.call('HSET', vault, ARGV[at + 3], ARGV[at + 4]) end
    taken[#taken + 1] = i
  end
end
if #taken > 0 then expire(ARGV[3]) end
return taken
"""
)

# epoch, owner, validator or '', how often an epoch, dropped names...
GIVE_BACK: Final = (
    _PRELUDE
    + """
local i = ARGV[3]
local fields = {'p', 'owner'}
if i ~= '' then fields = {'v' .. i, 'o' .. i} end
local claim = redis.call('HMGET', rec, 'epoch', 'back', unpack(fields))
if claim[1] ~= ARGV[1] or claim[3] ~= 'claimed' or claim[4] ~= ARGV[2] then return 0 end
local epoch, times = string.match(claim[2] or '', '^(%d+):(%d+)$')
times = epoch == ARGV[1] and tonumber(times) or 0
if times >= tonumber(ARGV[4]) then return 0 end
set('back', ARGV[1] .. ':' .. ms(times + 1))
if i == '' then
  set('p', 'open')
  redis.call('HDEL', rec, 'owner', 'exp', 'hard')
else
  release(i, 'open', '')
  redis.call('HINCRBY', rec, 't' .. i, -1)
end
if #ARGV > 4 then redis.call('HDEL', vault, unpack(ARGV, 5)) end
return 1
"""
)

# epoch, owner, lease, validator or ''
RENEW: Final = (
    _PRELUDE
    + """
local i = ARGV[4]
local fields = {'p', 'owner', 'exp', 'hard'}
if i ~= '' then fields = {'v' .. i, 'o' .. i, 'x' .. i, 'h' .. i} end
local claim = redis.call('HMGET', rec, 'epoch', unpack(fields))
if claim[1] ~= ARGV[1] or claim[2] ~= 'claimed' or claim[3] ~= ARGV[2] then return 0 end
local now, exp, hard = clock(), tonumber(claim[4]), tonumber(claim[5])
if exp < now or hard <= now then return 0 end
set(fields[3], ms(math.min(now + ARGV[3], hard)))
return 1
"""
)

# epoch, '1' when the run is running, expiry of a tombstone
CONDEMN: Final = (
    _PRELUDE
    + """
local now = clock()
local epoch = get('epoch')
if not epoch then
  epoch = ARGV[1]
  set('epoch', epoch, 'since', epoch, 'n', '0', 'p', 'norec', 'cand', '', 'starts', '0')
  redis.call('PEXPIRE', rec, ARGV[3])
end
local function look(state, until_, step)
  return {state, epoch, until_ or 0, get('starts'), step or 'produce', now}
end
if tonumber(epoch) < tonumber(ARGV[1]) then return look('behind') end
if tonumber(epoch) > tonumber(ARGV[1]) then return look('ahead') end
local latest = 0
local production = get('p')
if production == 'claimed' then
  local exp = tonumber(get('exp'))
  if exp >= now then return look('live', exp) end
  set('p', 'lost')
  redis.call('HDEL', rec, 'owner', 'exp', 'hard')
  return look('complete')
end
if production == 'open' then
  if ARGV[2] == '1' then return look('idle', 0, 'produce') end
  set('p', 'void')
  return look('complete')
end
local open = false
for i = 0, tonumber(get('n')) - 1 do
  local state = get('v' .. i)
  if state == 'claimed' then
    local exp = tonumber(get('x' .. i))
    if exp < now then release(i, 'undetermined', LOST) else latest = math.max(latest, exp) end
  elseif state == 'open' then
    open = true
  end
end
if production ~= 'candidate' then return look('complete') end
if latest > 0 then return look('live', latest) end
if open then return look('idle', 0, 'validate') end
return look('complete')
"""
)

# epoch
START: Final = (
    _PRELUDE
    + """
if not is_current(ARGV[1]) then return 0 end
return redis.call('HINCRBY', rec, 'starts', 1)
"""
)

READ: Final = (
    _PRELUDE
    + """
local candidate = get('cand')
if not candidate then return false end
return {clock(), entry_exists(candidate) and 1 or 0, redis.call('HGETALL', rec)}
"""
)

# epoch, expiry of what is retained, retained entries...
CLOSE: Final = (
    _PRELUDE
    + """
local epoch = get('epoch')
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then return 0 end
redis.call('UNLINK', rec)
if #ARGV < 3 then
  redis.call('UNLINK', vault)
  return 1
end
local retained = {}
for k = 3, #ARGV do retained[ARGV[k]] = true end
for _, name in ipairs(redis.call('HKEYS', vault)) do
  if not retained[name] then redis.call('HDEL', vault, name) end
end
redis.call('PEXPIRE', vault, ARGV[2])
return 1
"""
)
