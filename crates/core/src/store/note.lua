-- Keeps progress and log lines with running jobs. Fenced by each claim's token.
-- ARGV: groups of id, token, p (progress) or l (log line), text.
-- Returns how many were kept; those of a stale claim are not.
local kept = 0
for i = 2, #ARGV, 4 do
  local id, token, kind, text = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local st = redis.call('HGET', Q .. ':s', id)
  if st and string.sub(st, 1, 17) == 'r' .. token then
    local _, _, attempt, crashes, handbacks, flags, due, start, node = parse(st)
    local flag = kind == 'p' and PROGRESS or LOGS
    if kind == 'p' then
      redis.call('HSET', Q .. ':progress', id, text)
    else
      redis.call('RPUSH', Q .. ':l:' .. id, string.format('%.0f %s', ms, text))
      redis.call('LTRIM', Q .. ':l:' .. id, -100, -1)
    end
    if bit.band(flags, flag) == 0 then
      redis.call('HSET', Q .. ':s', id, pack('r', token, attempt, crashes, handbacks, bit.bor(flags, flag), due, start, node))
    end
    kept = kept + 1
  end
end
return kept
