-- Takes the jobs of one dead incarnation away from it: running → ready | retrying (as a suspect) | dead, or cancelled when a
-- person had asked for that; entries that it had fetched but not claimed go back to the front and are charged nothing.
-- Fenced by the lease's term: a reaper that lost the lease while it slept must not judge who lives.
-- ARGV: 2 incarnation, 3 term, 4 most jobs of this call, 5 crashes that bury a job, then the waits in ms before the 2nd, 3rd …
--       delivery after a crash (the last repeats).
-- Returns {fence} when a later term was here before; else {requeued, buried, unclaimed, 1 when there is more}. Marks the owner as
--         gone, so that it can claim nothing any more.
local inc, term, limit, most = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local fence = redis.call('GET', Q .. ':fence')
if fence and fence > term then return {fence} end
local OWNERS, PROC, RUN, STATES = Q .. ':owners', Q .. ':p:' .. inc, Q .. ':run:' .. inc, Q .. ':s'
local owner = redis.call('HGET', OWNERS, inc)
if not owner then return {0, 0, 0, 0} end
-- First a write that cannot grow, for a server at its memory limit: see settle.
redis.call('SREM', RUN, '')
if fence ~= term then redis.call('SET', Q .. ':fence', term) end
if string.sub(owner, 1, 4) ~= 'gone' then redis.call('HSET', OWNERS, inc, string.format('gone %.0f', ms)) end

local moved = redis.call('LRANGE', PROC, 0, limit - 1)
local unclaimed = 0
for i = 1, #moved do
  if moved[i] ~= BELL then
    redis.call('RPUSH', MAIN, moved[i])
    unclaimed = unclaimed + 1
  end
end
if #moved > 0 then redis.call('LTRIM', PROC, #moved, -1) end

local ids = redis.call('SPOP', RUN, limit)
-- Put back to the front one by one, so the oldest comes last and runs first.
table.sort(ids, function(a, b) return a > b end)
local requeued, buried = 0, 0
if #ids > 0 then
  local states = redis.call('HMGET', STATES, unpack(ids))
  for i, id in ipairs(ids) do
    local letter, token, attempt, crashes, handbacks, flags, due, start, node
    if states[i] then letter, token, attempt, crashes, handbacks, flags, due, start, node = parse(states[i]) end
    local body = redis.call('HGET', bucket(id), id)
    if letter == 'r' and node == inc and body then
      crashes = crashes + 1
      record(id, attempt, 'k', token, due, start, node, 'its node died')
      -- A person cancelled it, and the node had not yet carried that out.
      local cancelled = bit.band(flags, CANCEL) ~= 0
      flags = bit.bor(bit.band(flags, 15), HISTORY)
      local _, _, _, _, own = header(body)
      -- The token grows: a late write of the dead node is refused whatever the state says.
      token = string.format('%016.0f', tonumber(token) + 1)
      if cancelled then
        free_unique(id, body)
        redis.call('HSET', STATES, id, pack('c', token, attempt, crashes, handbacks, bit.band(flags, 7), due, start, node)
          .. string.format(' %.0f cancelled', ms))
        redis.call('ZADD', Q .. ':cancelled', ms, id)
        redis.call('HINCRBY', Q .. ':totals', 'cancelled', 1)
      elseif crashes >= (own > 0 and own or most) then
        free_unique(id, body)
        redis.call('HSET', STATES, id, pack('x', token, attempt, crashes, handbacks, flags, due, start, node)
          .. string.format(' %.0f killed its node %d times', ms, crashes))
        redis.call('ZADD', Q .. ':dead', ms, id)
        redis.call('HINCRBY', Q .. ':totals', 'dead', 1)
        buried = buried + 1
      elseif crashes == 1 then
        redis.call('HSET', STATES, id, pack('q', token, attempt - 1, crashes, handbacks, flags, due, start, node))
        place(id, body, flags, true)
        requeued = requeued + 1
      else
        local waits = #ARGV - 5
        local wait = tonumber(ARGV[5 + math.min(crashes - 1, waits)]) or 0
        redis.call('HSET', STATES, id, pack('t', token, attempt - 1, crashes, handbacks, bit.bor(flags, SUSPECT), ms + wait, start, node))
        redis.call('ZADD', Q .. ':retrying', ms + wait, id)
        nudge('due')
        requeued = requeued + 1
      end
    end
  end
end
local more = 0
if redis.call('SCARD', RUN) > 0 or redis.call('LLEN', PROC) > 0 then more = 1 end
return {requeued, buried, unclaimed, more}
