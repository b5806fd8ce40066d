-- Cancels by hand: scheduled | ready | retrying | held → cancelled; a running job is only asked to stop.
-- ARGV: ids from 2 on.
-- Returns for each the letter it had: d q t h cancelled now, r asked, s x c already ended (unchanged), - unknown.
local out = {}
-- First a write that cannot grow, for a server at its memory limit: see settle.
redis.call('ZREM', Q .. ':scheduled', '')
for i = 2, #ARGV do
  local id = ARGV[i]
  local body = redis.call('HGET', bucket(id), id)
  local st = redis.call('HGET', Q .. ':s', id)
  local letter, token, attempt, crashes, handbacks, flags, due, start, node = '-', NO_TOKEN, 0, 0, 0, 0, 0, 0, '-'
  if body then
    if st then
      letter, token, attempt, crashes, handbacks, flags, due, start, node = parse(st)
    else
      letter = redis.call('ZSCORE', Q .. ':scheduled', id) and 'd' or 'q'
    end
  end
  out[#out + 1] = letter or '-'
  if letter == 'r' then
    redis.call('HSET', Q .. ':s', id, pack('r', token, attempt, crashes, handbacks, bit.bor(flags, CANCEL), due, start, node))
    nudge('cancel')
  elseif letter == 'd' or letter == 'q' or letter == 't' or letter == 'h' then
    redis.call('ZREM', Q .. ':scheduled', id)
    redis.call('ZREM', Q .. ':retrying', id)
    redis.call('ZREM', Q .. ':held', id)
    free_unique(id, body)
    redis.call('HSET', Q .. ':s', id, pack('c', token, attempt, crashes, handbacks, bit.band(flags, 7), due, start, node)
      .. string.format(' %.0f cancelled', ms))
    redis.call('ZADD', Q .. ':cancelled', ms, id)
    redis.call('HINCRBY', Q .. ':totals', 'cancelled', 1)
  end
end
return out
