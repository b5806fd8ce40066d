-- Lets a paused queue go on. Nothing was moved when it was paused, so nothing has to be moved now.
-- Returns 1 when it was paused.
local was = redis.call('DEL', Q .. ':paused')
ring()
nudge('resume')
return was
