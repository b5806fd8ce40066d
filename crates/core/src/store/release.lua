-- Gives the lease up, by its holder only, and tells the others. KEYS[1] = {ns}.
-- ARGV: 2 node, 3 term.
-- Returns 1 when released, 0 when it was not this holder's.
local held = redis.call('GET', Q .. ':lease')
local mine = ARGV[2] .. ' ' .. ARGV[3] .. ' '
if not held or string.sub(held, 1, #mine) ~= mine then return 0 end
redis.call('DEL', Q .. ':lease')
redis.call('SET', Q .. ':term', ARGV[3] .. ' released')
nudge('lease')
return 1
