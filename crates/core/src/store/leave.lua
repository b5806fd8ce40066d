-- Ends the ownership of an incarnation that stopped in good order, or of a dead one after its hour.
-- ARGV: 2 incarnation, 3 how long (ms) a dead one must have been gone (0 for one that stops itself).
-- Returns 1 when it left, 0 while it still has entries or jobs here (the reaper takes those).
local inc = ARGV[2]
local owner = redis.call('HGET', Q .. ':owners', inc)
if not owner then return 1 end
if redis.call('LLEN', Q .. ':p:' .. inc) > 0 or redis.call('SCARD', Q .. ':run:' .. inc) > 0 then return 0 end
local wait, since = tonumber(ARGV[3]), tonumber(string.match(owner, '^gone (%d+)'))
if wait > 0 and (not since or ms - since < wait) then return 0 end
redis.call('HDEL', Q .. ':owners', inc)
return 1
