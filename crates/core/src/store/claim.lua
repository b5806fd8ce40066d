-- Gives jobs to one incarnation: ready → running. Takes what its blocking fetch moved first, then from the bands.
-- ARGV: 2 incarnation, 3 claim number, 4 free slots, 5–8 slots meant for each band, 9 whether a suspect may come (0 | 1).
-- Returns {'gone'} when the incarnation is no owner; {'old'} for a number below the last; {'paused'}; else
--         {'ok', token, now in ms, jobs left in the bands, dropped entries, then id, body, packed state of each job}.
-- The last number again gives the same jobs again: the reply may have been lost.
local inc, number, want = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local owner = redis.call('HGET', Q .. ':owners', inc)
local last, last_token = string.match(owner or '', '^(%d+) (%d+)$')
local RUN, PROC, STATES = Q .. ':run:' .. inc, Q .. ':p:' .. inc, Q .. ':s'
if not owner then
  -- The reaper looks only at owners: what the fetch of one that Redis has forgotten moved goes back to the front here.
  for _, entry in ipairs(redis.call('LRANGE', PROC, 0, -1)) do
    if entry ~= BELL then redis.call('RPUSH', MAIN, entry) end
  end
  redis.call('DEL', PROC)
end
if not last then return {'gone'} end
last = tonumber(last)
if number < last then return {'old'} end

if number == last and number > 0 then
  local out = {'ok', last_token, ms, 0, 0}
  local ids = redis.call('SMEMBERS', RUN)
  if #ids == 0 then return out end
  table.sort(ids)
  local states = states_of(ids)
  for i, id in ipairs(ids) do
    if states[i] and string.sub(states[i], 1, 17) == 'r' .. last_token then
      out[#out + 1] = id
      out[#out + 1] = redis.call('HGET', bucket(id), id) or ''
      out[#out + 1] = states[i]
    end
  end
  return out
end

local moved = redis.call('LRANGE', PROC, 0, -1)
local waiting = {}
for i = #moved, 1, -1 do
  if moved[i] ~= BELL then waiting[#waiting + 1] = moved[i] end
end
if #moved > 0 then redis.call('DEL', PROC) end
local paused = redis.call('EXISTS', Q .. ':paused') == 1
if paused then want = 0 end
for i = #waiting, want + 1, -1 do
  redis.call('RPUSH', MAIN, waiting[i])
  waiting[i] = nil
end
if paused then return {'paused'} end

local ids, seen, out, dropped, token, fresh = {}, {}, {'ok', '0', ms, 0, 0}, 0, nil, nil
local changed = {}
local function take(entries)
  local batch, stamps = {}, {}
  for i = 1, #entries do
    -- A bell takes nobody's place.
    if entries[i] == BELL then entries[#entries + 1] = redis.call('RPOP', MAIN) or nil end
  end
  for _, entry in ipairs(entries) do
    if entry ~= BELL then
      local hash = string.find(entry, '#', 1, true)
      local id = hash and string.sub(entry, 1, hash - 1) or entry
      if not seen[id] then
        batch[#batch + 1] = id
        stamps[#batch] = hash and string.sub(entry, hash + 1) or '0'
      end
    end
  end
  if #batch == 0 then return end
  if not token then
    local before = redis.call('GET', Q .. ':token')
    token = string.format('%016.0f', math.max((tonumber(before) or 0) + 1, us))
    out[2] = token
    fresh = 'r' .. token .. PLAIN .. string.format('%.0f', ms) .. ' ' .. inc
  end
  local states = redis.call('HMGET', STATES, unpack(batch))
  for i, id in ipairs(batch) do
    local body, st, _ = redis.call('HGET', bucket(id), id), states[i], nil
    local letter, attempt, crashes, handbacks, flags, due
    if st then letter, _, attempt, crashes, handbacks, flags, due = parse(st) end
    -- A state that cannot be read counts as none: the job runs as if it never had.
    if not letter then attempt, crashes, handbacks, flags, due = 0, 0, 0, 0, 0 end
    local fits = body and not seen[id] and (not letter or letter == 'q')
    local till, key = '-', ''
    if fits and string.sub(body, 4, 4) == '+' then
      local stamp, rest
      _, _, stamp, _, _, till, key, rest = header(body)
      -- Without a header there is no stamp to compare; the entry passes, so that Rust buries the job.
      fits = stamp == stamps[i] or rest == 17
    end
    if fits then
      if till == 's' then
        if redis.call('GET', Q .. ':u:' .. key) == id then redis.call('DEL', Q .. ':u:' .. key) end
      elseif till == 'f' then
        flags = bit.bor(flags, UNIQUE)
      end
      local packed = fresh
      if st or flags > 0 then packed = pack('r', token, attempt + 1, crashes, handbacks, flags, due, ms, inc) end
      seen[id] = true
      ids[#ids + 1] = id
      changed[#changed + 1] = id
      changed[#changed + 1] = packed
      out[#out + 1] = id
      out[#out + 1] = body
      out[#out + 1] = packed
    else
      dropped = dropped + 1
      if not body and st and letter ~= 'r' then purge({id}) end
    end
  end
end

take(waiting)
if ARGV[9] == '1' and #ids < want then
  local suspect = redis.call('RPOP', Q .. ':suspects')
  if suspect then take({suspect}) end
end
for band = 0, 3 do
  local share = math.min(tonumber(ARGV[5 + band]), want - #ids)
  if share > 0 then take(redis.call('RPOP', Q .. ':r' .. band, share) or {}) end
end
-- What a band could not fill, and what was dropped, goes to the others in order of urgency; bounded, so that a list full of
-- dead entries cannot hold Redis.
for _ = 1, 4 do
  for band = 0, 3 do
    if #ids < want then take(redis.call('RPOP', Q .. ':r' .. band, want - #ids) or {}) end
  end
end
if #ids > 0 then
  redis.call('HSET', STATES, unpack(changed))
  redis.call('SADD', RUN, unpack(ids))
  redis.call('SET', Q .. ':token', token)
end
-- Also when it got nothing: a copy of this call that the network held up must not take jobs for a node that stopped listening.
redis.call('HSET', Q .. ':owners', inc, number .. ' ' .. (#ids > 0 and token or '0'))
if #ids >= want or dropped > 0 then
  local main = redis.call('LLEN', MAIN)
  local left = redis.call('LLEN', Q .. ':r0') + redis.call('LLEN', Q .. ':r1') + redis.call('LLEN', Q .. ':r3')
  if main == 0 and left > 0 then redis.call('LPUSH', MAIN, BELL) end
  out[4] = main + left
end
out[5] = dropped
return out
