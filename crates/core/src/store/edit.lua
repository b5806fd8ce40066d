-- Replaces the value of a job that waits: scheduled | ready | retrying | held | dead | cancelled stays what it is.
-- ARGV: 2 id, 3 the body as it was read, 4 the new value.
-- Returns 1 changed, 0 when the body or the state changed meanwhile, -1 unknown.
local id = ARGV[2]
local where = bucket(id)
local body = redis.call('HGET', where, id)
if not body then return -1 end
local st = redis.call('HGET', Q .. ':s', id)
if body ~= ARGV[3] or (st and string.find(st, '^[rs]')) then return 0 end
local _, _, _, _, _, _, _, rest = header(body)
redis.call('HSET', where, id, string.sub(body, 1, rest - 1) .. ARGV[4])
return 1
