-- Moves what is due: scheduled | retrying → ready, or by its own late policy → cancelled | held. Fenced by the lease's term.
-- ARGV: 2 term, 3 most jobs of this call.
-- Returns {fence} when a later term was here before; else {0, now in ms, next due in ms or -1, late (cancelled or held), phantoms,
--         then each moved job's lateness in ms}.
local fence = redis.call('GET', Q .. ':fence')
local term = ARGV[2]
-- Terms are compared as text of one width, because a double would still be exact but a table of them is slower.
if fence and fence > term then return {fence} end

local limit = tonumber(ARGV[3])
local due = redis.call('ZRANGEBYSCORE', Q .. ':scheduled', '-inf', ms, 'WITHSCORES', 'LIMIT', 0, limit)
local fresh = #due
if #due / 2 < limit then
  local again = redis.call('ZRANGEBYSCORE', Q .. ':retrying', '-inf', ms, 'WITHSCORES', 'LIMIT', 0, limit - #due / 2)
  for i = 1, #again do due[#due + 1] = again[i] end
end
local out = {'0', ms, -1, 0, 0}
if #due > 0 or fence ~= term then
  -- First a write that cannot grow, for a server at its memory limit: see settle.
  redis.call('ZREM', Q .. ':scheduled', '')
  -- Also when nothing is due: an older leader must find every queue closed.
  if fence ~= term then redis.call('SET', Q .. ':fence', term) end
end
if #due > 0 then
  local ids = {}
  for i = 1, #due, 2 do ids[#ids + 1] = due[i] end
  local states = redis.call('HMGET', Q .. ':s', unpack(ids))
  local lists, bell, changed, phantoms = {}, false, {}, {}
  for i, id in ipairs(ids) do
    local at, st = tonumber(due[i * 2]), states[i]
    local body = redis.call('HGET', bucket(id), id)
    if not body then
      out[5] = out[5] + 1
      phantoms[#phantoms + 1] = id
    else
      local band, late, stamp, grace = header(body)
      local _, token, attempt, crashes, handbacks, flags, _, start, node
      if st then _, token, attempt, crashes, handbacks, flags, _, start, node = parse(st) end
      if late ~= 'r' and ms - at > grace and i * 2 <= fresh then
        local letter = late == 's' and 'c' or 'h'
        redis.call('ZADD', Q .. (late == 's' and ':cancelled' or ':held'), ms, id)
        changed[#changed + 1] = id
        changed[#changed + 1] = pack(letter, token or NO_TOKEN, attempt or 0, crashes or 0, handbacks or 0, flags or 0, at,
          start or 0, node or '-') .. string.format(' %.0f late', ms)
        if late == 's' then
          free_unique(id, body)
          redis.call('HINCRBY', Q .. ':totals', 'cancelled', 1)
        end
        out[4] = out[4] + 1
      else
        if token then
          changed[#changed + 1] = id
          changed[#changed + 1] = pack('q', token, attempt, crashes, handbacks, flags, at, start, node)
        end
        local list = band
        if token and bit.band(flags, SUSPECT) ~= 0 then list = 's' end
        if not lists[list] then lists[list] = {} end
        table.insert(lists[list], stamp == '0' and id or (id .. '#' .. stamp))
        if list ~= '2' then bell = true end
        out[#out + 1] = ms - at
      end
    end
  end
  if fresh > 0 then
    local first = {}
    for i = 1, fresh / 2 do first[i] = ids[i] end
    redis.call('ZREM', Q .. ':scheduled', unpack(first))
  end
  if #due > fresh then
    local rest = {}
    for i = fresh / 2 + 1, #ids do rest[#rest + 1] = ids[i] end
    redis.call('ZREM', Q .. ':retrying', unpack(rest))
  end
  if #changed > 0 then redis.call('HSET', Q .. ':s', unpack(changed)) end
  purge(phantoms)
  for list, entries in pairs(lists) do
    redis.call('LPUSH', list == 's' and (Q .. ':suspects') or (Q .. ':r' .. list), unpack(entries))
  end
  if bell then ring() end
end
for _, set in ipairs({'scheduled', 'retrying'}) do
  local first = redis.call('ZRANGE', Q .. ':' .. set, 0, 0, 'WITHSCORES')
  if first[2] then
    local at = tonumber(first[2])
    if out[3] < 0 or at < out[3] then out[3] = at end
  end
end
return out
