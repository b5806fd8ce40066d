-- Mends one kind of damage that `doctor` found, after looking again. The damage comes from outside: evictions, hand-made
-- deletions, an older dump.
-- ARGV: 2 kind, 3 name, then ids or keys.
--   index  name = a set: ids without a body leave it.       state  ids without a body lose what else is left of them.
--   unique keys whose holder has no body are freed.         lost   ids with a body go where their state says that they stand.
--   owner  incarnations that have lists here but no owner entry are handed to the reaper.
-- Returns how many were mended.
local kind, name, mended = ARGV[2], ARGV[3], 0
local SETS = {d = 'scheduled', t = 'retrying', s = 'succeeded', x = 'dead', c = 'cancelled', h = 'held'}

local function put_back(id, body)
  local letter, node, due, ended, flags, _
  local st = redis.call('HGET', Q .. ':s', id)
  if st then letter, _, _, _, _, flags, due, _, node, ended = parse(st) end
  if not letter and redis.call('ZSCORE', Q .. ':scheduled', id) then return 0 end
  -- Never early, although the index that said when is lost.
  if not letter and due_of(body) > ms then letter, due = 'd', due_of(body) end
  if SETS[letter] then
    local at = (letter == 'd' or letter == 't') and due or ended
    return redis.call('ZADD', Q .. ':' .. SETS[letter], 'NX', at, id)
  end
  if letter == 'r' then
    redis.call('HSETNX', Q .. ':owners', node, string.format('gone %.0f', ms))
    return redis.call('SADD', Q .. ':run:' .. node, id)
  end
  local band, _, stamp = header(body)
  local entry = stamp == '0' and id or (id .. '#' .. stamp)
  if redis.call('LPOS', Q .. ':r' .. band, entry) or redis.call('LPOS', Q .. ':suspects', entry) then return 0 end
  place(id, body, flags or 0, true)
  return 1
end

for i = 4, #ARGV do
  local id = ARGV[i]
  local there = redis.call('HEXISTS', bucket(id), id) == 1
  if kind == 'index' then
    local remove = string.sub(name, 1, 4) == 'run:' and 'SREM' or 'ZREM'
    if not there then mended = mended + redis.call(remove, Q .. ':' .. name, id) end
  elseif kind == 'state' then
    if not there and redis.call('HEXISTS', Q .. ':s', id) == 1 then
      purge({id})
      mended = mended + 1
    end
  elseif kind == 'unique' then
    local holder = redis.call('GET', Q .. ':u:' .. id)
    if holder and redis.call('HEXISTS', bucket(holder), holder) == 0 then
      mended = mended + redis.call('DEL', Q .. ':u:' .. id)
    end
  elseif kind == 'owner' then
    mended = mended + redis.call('HSETNX', Q .. ':owners', id, string.format('gone %.0f', ms))
  elseif kind == 'lost' and there then
    mended = mended + put_back(id, redis.call('HGET', bucket(id), id))
  end
end
return mended
