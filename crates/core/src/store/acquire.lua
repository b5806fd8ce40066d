-- Takes the lease when nobody holds it. KEYS[1] = {ns}.
-- ARGV: 2 node, 3 lifetime in ms, 4 a term that the new one must exceed (a queue's fence that refused the last one, or 0).
-- Returns {1, term, how it became free: free | released | expired} or {0, holder, term, held since in ms, expires in ms}.
local held = redis.call('GET', Q .. ':lease')
if held then
  local holder, term, since = string.match(held, '^(%S+) (%d+) (%d+)$')
  return {0, holder or held, term or '0', since or '0', redis.call('PTTL', Q .. ':lease')}
end
local last, how = string.match(redis.call('GET', Q .. ':term') or '', '^(%d+) (%a+)$')
local term = string.format('%016.0f', math.max((tonumber(last) or 0) + 1, us, tonumber(ARGV[4]) + 1))
-- First a write that cannot grow, for a server at its memory limit: see settle.
redis.call('DEL', Q .. ':lease')
redis.call('SET', Q .. ':term', term .. ' held')
redis.call('SET', Q .. ':lease', string.format('%s %s %.0f', ARGV[2], term, ms), 'PX', ARGV[3])
return {1, term, not last and 'free' or (how == 'released' and 'released' or 'expired')}
