-- Makes jobs wait anew by hand: retry, run-now, release and reschedule. Any state but running → ready | scheduled.
-- ARGV: 2 letters of the states it may come from, 3 due: n or an instant in ms, 4 whether attempts and crashes begin anew (0 | 1),
--       then ids.
-- Returns for each d or q, where it waits now; else !<letter> for a wrong state, !- unknown, =<id> when another living job
--         holds its unique key. The body gets a new stamp, so that an older entry in a ready list is dropped.
local allowed, due, anew = ARGV[2], ARGV[3], ARGV[4] == '1'
local out = {}
for i = 5, #ARGV do
  local id = ARGV[i]
  local where = bucket(id)
  local body = redis.call('HGET', where, id)
  local st = redis.call('HGET', Q .. ':s', id)
  local letter, token, attempt, crashes, handbacks, flags, _, start, node = '-', NO_TOKEN, 0, 0, 0, 0, 0, 0, '-'
  if body then
    if st then
      letter, token, attempt, crashes, handbacks, flags, _, start, node = parse(st)
    else
      letter = redis.call('ZSCORE', Q .. ':scheduled', id) and 'd' or 'q'
    end
  end
  local holder
  if body and letter and string.find(allowed, letter, 1, true) then
    local _, _, stamp, grace, most, till, key, rest = header(body)
    local ended = letter == 's' or letter == 'x' or letter == 'c'
    if ended and till ~= '-' then
      holder = redis.call('GET', Q .. ':u:' .. key)
      if holder and (holder == id or not living(holder)) then holder = nil end
      if not holder then redis.call('SET', Q .. ':u:' .. key, id) end
    end
    if not holder then
      stamp = string.format('%.0f', math.max(tonumber(stamp) + 1, us))
      body = string.sub(body, 1, 3) .. '+' .. string.sub(body, 5, 16)
        .. string.format('%s %d %d %s %s\n', stamp, grace, most, till, key) .. string.sub(body, rest)
      redis.call('HSET', where, id, body)
      unlist(id)
      redis.call('HDEL', Q .. ':results', id)
      if anew then attempt, crashes, flags = 0, 0, bit.band(flags, 7) end
      local at = due == 'n' and ms or tonumber(due)
      if at > ms then
        redis.call('HSET', Q .. ':s', id, pack('d', token, attempt, crashes, handbacks, flags, at, start, node))
        redis.call('ZADD', Q .. ':scheduled', at, id)
        nudge('due')
        out[#out + 1] = 'd'
      else
        redis.call('HSET', Q .. ':s', id, pack('q', token, attempt, crashes, handbacks, flags, at, start, node))
        place(id, body, flags, false)
        out[#out + 1] = 'q'
      end
    end
  end
  if #out < i - 4 then out[#out + 1] = holder and ('=' .. holder) or ('!' .. (letter or '-')) end
end
return out
