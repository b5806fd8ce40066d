-- Removes jobs with every trace, whatever their state; a running one finds itself gone when it settles.
-- ARGV: ids from 2 on.
-- Returns for each 1 removed, 0 unknown.
local out = {}
for i = 2, #ARGV do
  local id = ARGV[i]
  local body = redis.call('HGET', bucket(id), id)
  local st = redis.call('HGET', Q .. ':s', id)
  out[#out + 1] = (body or st) and 1 or 0
  if body or st then
    if body then free_unique(id, body) end
    unlist(id)
    local node = st and select(9, parse(st))
    if node then redis.call('SREM', Q .. ':run:' .. node, id) end
    if st and string.sub(st, 1, 1) == 'r' then nudge('cancel') end
    purge({id})
  end
end
return out
