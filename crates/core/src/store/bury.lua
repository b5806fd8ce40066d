-- Declares an incarnation dead, unless it beats. KEYS[1] = {ns}.
-- ARGV: 2 incarnation, 3 term of the lease under which the reaper acts.
-- Returns 1 dead now, 0 it beats, 2 when it is no member (it left, or was buried before), -1 when the lease is no longer held in
-- that term.
local held = redis.call('GET', Q .. ':lease')
if not held or string.match(held, '^%S+ (%d+) ') ~= ARGV[3] then return -1 end
if redis.call('EXISTS', Q .. ':beat:' .. ARGV[2]) == 1 then return 0 end
return redis.call('HDEL', Q .. ':nodes', ARGV[2]) == 1 and 1 or 2
