-- Lets a paused queue go on. Nothing was moved when it was paused, so nothing has to be moved now.
-- Returns 1 when it was paused.
local was = redis.call('DEL', Q .. ':paused')
-- For bands that no blocking fetch sees; else a queue that nobody serves would keep a bell for ever.
if redis.call('EXISTS', Q .. ':r0', Q .. ':r1', Q .. ':r3', Q .. ':suspects') > 0 then ring() end
nudge('resume')
return was
