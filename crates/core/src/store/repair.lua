-- Mends one kind of damage that `doctor` found, after looking again. The damage comes from outside: evictions, hand-made
-- deletions, an older dump.
-- ARGV: 2 kind, 3 name, then ids or keys.
--   index  name = a set: ids without a body leave it.       state  ids without a body lose their state.
--   unique keys whose holder has no body are freed.         lost   ids with a body that wait in no list are placed again.
--   owner  incarnations that have lists here but no owner entry are handed to the reaper.
-- Returns how many were mended.
local kind, name, mended = ARGV[2], ARGV[3], 0
for i = 4, #ARGV do
  local id = ARGV[i]
  if kind == 'index' then
    if redis.call('HEXISTS', bucket(id), id) == 0 then mended = mended + redis.call('ZREM', Q .. ':' .. name, id) end
  elseif kind == 'state' then
    if redis.call('HEXISTS', bucket(id), id) == 0 then mended = mended + redis.call('HDEL', Q .. ':s', id) end
  elseif kind == 'unique' then
    local holder = redis.call('GET', Q .. ':u:' .. id)
    if holder and redis.call('HEXISTS', bucket(holder), holder) == 0 then
      mended = mended + redis.call('DEL', Q .. ':u:' .. id)
    end
  elseif kind == 'owner' then
    mended = mended + redis.call('HSETNX', Q .. ':owners', id, string.format('gone %.0f', ms))
  elseif kind == 'lost' then
    local body, st = redis.call('HGET', bucket(id), id), redis.call('HGET', Q .. ':s', id)
    local waits = redis.call('ZSCORE', Q .. ':scheduled', id)
    if body and (not st or string.sub(st, 1, 1) == 'q') and not waits then
      local band, _, stamp = header(body)
      local entry = stamp == '0' and id or (id .. '#' .. stamp)
      if not redis.call('LPOS', Q .. ':r' .. band, entry) and not redis.call('LPOS', Q .. ':suspects', entry) then
        place(id, body, 0, true)
        mended = mended + 1
      end
    end
  end
end
return mended
