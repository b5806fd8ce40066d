-- Put before every script at load: time, buckets, headers, packed states, and the one place that decides where a job waits.
-- KEYS[1] is the tag that all keys of the script share: {ns:queue} for a queue, {ns} for the cluster. ARGV[1] is empty, or a
-- time in microseconds that a test passes instead of Redis' own. Nothing here chooses a policy.
local Q = KEYS[1]
local us
if ARGV[1] == '' then
  local t = redis.call('TIME')
  us = t[1] * 1000000 + t[2]
else
  us = tonumber(ARGV[1])
end
local ms = math.floor(us / 1000)

-- Flags of a packed state.
local HISTORY, LOGS, PROGRESS, SUSPECT, CANCEL, UNIQUE = 1, 2, 4, 8, 16, 32
local BELL = '!'
local MAIN = Q .. ':r2'

-- The hash that holds a job's body: by the last two characters of a generated id, by a digest of a caller's id, because
-- callers' ids tend to end alike.
local function bucket(id)
  if #id == 26 and string.find(id, '^[0-7][0-9A-HJKMNP-TV-Z]+$') then
    return Q .. ':b:' .. string.sub(id, -2)
  end
  return Q .. ':b:h' .. string.sub(redis.sha1hex(id), 1, 2)
end

-- band, late policy, stamp, grace in ms, max crashes, until, unique key, and where the bincode value begins.
local function header(body)
  local band, late = string.sub(body, 2, 2), string.sub(body, 3, 3)
  if not string.find(band, '^[0-3]$') then band = '2' end
  if string.sub(body, 4, 4) == '+' then
    local stamp, grace, crashes, till, key, rest = string.match(body, '^(%d+) (%d+) (%d+) (.) ([^\n]*)\n()', 17)
    if stamp then return band, late, stamp, tonumber(grace), tonumber(crashes), till, key, rest end
  end
  return band, late, '0', 0, 0, '-', '', 17
end

local function due_of(body)
  if #body < 16 then return 0 end
  local high, low = struct.unpack('>I2I4', body, 11)
  return high * 4294967296 + low
end

-- Packed state: letter and token, attempts spent, crashes, hand-backs, flags, due, start, node; once ended also when and why.
local function pack(letter, token, attempt, crashes, handbacks, flags, due, start, node)
  return string.format('%s%s %d %d %d %d %.0f %.0f %s', letter, token, attempt, crashes, handbacks, flags, due, start, node)
end

local function parse(st)
  local letter, token, attempt, crashes, handbacks, flags, due, start, node, ended, text =
    string.match(st, '^(%a)(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) ?(%d*) ?(.*)$')
  if not letter then return nil end
  return letter, token, tonumber(attempt), tonumber(crashes), tonumber(handbacks), tonumber(flags), tonumber(due),
    tonumber(start), node, tonumber(ended) or 0, text
end

-- Most jobs succeed at their first attempt and have nothing beside body and state. Their states are told by position and made by
-- concatenation: taking ten captures apart costs more than all the rest of a settle.
local PLAIN = ' 1 0 0 0 0 '
local function is_plain(st) return string.sub(st, 18, 28) == PLAIN end

local NO_TOKEN = '0000000000000000'

-- Rings the bell: BRPOPLPUSH serves the main list only, so work in another band needs a marker there, at most one.
local function ring()
  if redis.call('LLEN', MAIN) == 0 then redis.call('LPUSH', MAIN, BELL) end
end

-- Puts a job where it waits to be claimed; every path into a ready list comes through here. Front = next to be taken.
local function place(id, body, flags, front)
  local band, _, stamp = header(body)
  local entry = id
  if stamp ~= '0' then entry = id .. '#' .. stamp end
  if bit.band(flags, SUSPECT) ~= 0 then
    redis.call('LPUSH', Q .. ':suspects', entry)
    ring()
    return
  end
  redis.call(front and 'RPUSH' or 'LPUSH', Q .. ':r' .. band, entry)
  if band ~= '2' then ring() end
end

-- Packed states of any number of ids, in their order: Lua unpacks a few thousand values at most.
local function states_of(ids)
  local out = {}
  for i = 1, #ids, 1000 do
    local page = redis.call('HMGET', Q .. ':s', unpack(ids, i, math.min(i + 999, #ids)))
    for j = 1, #page do out[i + j - 1] = page[j] end
  end
  return out
end

-- Whether a job is there and has not ended: only then does it hold its unique key.
local function living(id)
  if redis.call('HEXISTS', bucket(id), id) == 0 then return false end
  local st = redis.call('HGET', Q .. ':s', id)
  return not st or not string.find(st, '^[sxc]')
end

-- Takes a job out of every sorted set.
local function unlist(id)
  for _, set in ipairs({'scheduled', 'retrying', 'held', 'succeeded', 'dead', 'cancelled'}) do
    redis.call('ZREM', Q .. ':' .. set, id)
  end
end

local function free_unique(id, body)
  local _, _, _, _, _, till, key = header(body)
  if till ~= '-' and redis.call('GET', Q .. ':u:' .. key) == id then redis.call('DEL', Q .. ':u:' .. key) end
end

-- One attempt into the history. A list per job, only for jobs that have one.
local function record(id, number, outcome, token, due, start, node, text)
  local key = Q .. ':h:' .. id
  redis.call('RPUSH', key, string.format('%d %s %s %.0f %.0f %.0f %s %s', number, outcome, token, due, start, ms, node, text))
  redis.call('LTRIM', key, -100, -1)
end

-- Removes every trace of jobs that wait nowhere any more.
local function purge(ids)
  if #ids == 0 then return end
  local states = redis.call('HMGET', Q .. ':s', unpack(ids))
  for i, id in ipairs(ids) do
    redis.call('HDEL', bucket(id), id)
    local flags = 3
    if states[i] and is_plain(states[i]) then
      flags = 0
    elseif states[i] then
      flags = tonumber(string.match(states[i], '^%a%d+ %d+ %d+ %d+ (%d+)')) or 3
    end
    if bit.band(flags, HISTORY) ~= 0 then redis.call('DEL', Q .. ':h:' .. id) end
    if bit.band(flags, LOGS) ~= 0 then redis.call('DEL', Q .. ':l:' .. id) end
  end
  redis.call('HDEL', Q .. ':s', unpack(ids))
  redis.call('HDEL', Q .. ':results', unpack(ids))
  redis.call('HDEL', Q .. ':progress', unpack(ids))
end

-- Keeps an ended set within its count and age, a bounded number of jobs a call; returns how many it removed.
local function trim(set, keep_ms, keep_max, limit)
  local key = Q .. ':' .. set
  local over = redis.call('ZCARD', key) - keep_max
  local ids
  if over > 0 then
    ids = redis.call('ZRANGE', key, 0, math.min(over, limit) - 1)
  else
    ids = redis.call('ZRANGEBYSCORE', key, '-inf', ms - keep_ms, 'LIMIT', 0, limit)
  end
  if #ids > 0 then
    redis.call('ZREM', key, unpack(ids))
    purge(ids)
  end
  return #ids
end

local function nudge(what)
  local ns, queue = string.match(Q, '^{([^:}]*):?([^}]*)}')
  redis.call('PUBLISH', '{' .. ns .. '}:nudge', what .. ' ' .. queue)
end
