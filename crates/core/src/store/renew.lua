-- Prolongs the lease for its holder only. KEYS[1] = {ns}.
-- ARGV: 2 node, 3 term, 4 lifetime in ms.
-- Returns 1 when prolonged, 0 when another holds it or nobody does.
local held = redis.call('GET', Q .. ':lease')
local mine = ARGV[2] .. ' ' .. ARGV[3] .. ' '
if not held or string.sub(held, 1, #mine) ~= mine then return 0 end
redis.call('PEXPIRE', Q .. ':lease', ARGV[4])
return 1
