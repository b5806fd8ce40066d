-- Ends attempts: running → succeeded | retrying | dead | cancelled | scheduled | ready, as Rust chose. Fenced by each claim's token.
-- ARGV: 2 incarnation, 3 and 4 how long (ms) and how many succeeded and cancelled jobs are kept, 5 and 6 the same for dead ones,
--       then for each job: id, token, letter of the new state, delay in ms, outcome letter or -, text, result.
-- Returns {now in ms, then for each job: 1 done, 2 done before with this token, 0 stale, -1 gone}.
local inc = ARGV[2]
local STATES, RUN = Q .. ':s', Q .. ':run:' .. inc
local keep = {s = tonumber(ARGV[3]), x = tonumber(ARGV[5]), c = tonumber(ARGV[3])}
local most = {s = tonumber(ARGV[4]), x = tonumber(ARGV[6]), c = tonumber(ARGV[4])}
local SETS = {s = 'succeeded', x = 'dead', c = 'cancelled', t = 'retrying', d = 'scheduled'}

local ids = {}
for i = 7, #ARGV, 7 do ids[#ids + 1] = ARGV[i] end
local states = redis.call('HMGET', STATES, unpack(ids))
local out, left, changed, gone, ended, sets, earliest = {ms}, {}, {}, {}, {}, {}, {}
local finished, mine = string.format(' %.0f ', ms), ' ' .. inc
local function add_to(letter, score, id)
  local set = sets[letter]
  if not set then set = {}; sets[letter] = set end
  set[#set + 1] = score
  set[#set + 1] = id
end
-- At its memory limit Redis refuses a script's first write when that could grow, and no later one: results must always get in.
redis.call('SREM', RUN, '')
for i, id in ipairs(ids) do
  local at = 7 * i
  local token, to, delay, outcome, text, result = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5], ARGV[at + 6]
  local st = states[i]
  local plain = to == 's' and st and is_plain(st) and string.sub(st, 2, 17) == token and string.sub(st, 1, 1) == 'r'
    and string.sub(st, -#mine) == mine
  local letter, held, attempt, crashes, handbacks, flags, due, start, node
  if st and not plain then letter, held, attempt, crashes, handbacks, flags, due, start, node = parse(st) end
  if plain then
    left[#left + 1] = id
    out[#out + 1] = 1
    ended.s = (ended.s or 0) + 1
    if keep.s == 0 or most.s == 0 then
      gone[#gone + 1] = id
    else
      if result ~= '' then redis.call('HSET', Q .. ':results', id, result) end
      changed[#changed + 1] = id
      changed[#changed + 1] = 's' .. string.sub(st, 2) .. finished
      add_to(to, ms, id)
    end
  elseif not st then
    -- What is left of it may not keep the node from leaving.
    left[#left + 1] = id
    out[#out + 1] = -1
  elseif held ~= token or node ~= inc then
    -- The incarnation too, because a failover may forget the highest token and give it once more.
    out[#out + 1] = 0
  elseif letter ~= 'r' then
    out[#out + 1] = 2
  elseif redis.call('HEXISTS', bucket(id), id) == 0 then
    -- Its record was deleted by hand: to write on would make a ghost. (Of a plain success retention clears what is left.)
    left[#left + 1] = id
    gone[#gone + 1] = id
    out[#out + 1] = -1
  else
    left[#left + 1] = id
    out[#out + 1] = 1
    local reason = text
    if bit.band(flags, CANCEL) ~= 0 and (to == 't' or to == 'd' or to == 'q') then
      -- A person cancelled it meanwhile: there is no other attempt.
      to, reason = 'c', 'cancelled'
    end
    local final = to == 's' or to == 'x' or to == 'c'
    local kept = not final or (keep[to] > 0 and most[to] > 0)
    if kept and outcome ~= '-' and (to ~= 's' or flags % 2 == 1) then
      record(id, attempt, outcome, token, due, start, node, text)
      flags = bit.bor(flags, HISTORY)
    end
    if final and bit.band(flags, UNIQUE) ~= 0 then free_unique(id, redis.call('HGET', bucket(id), id)) end
    if final then
      -- Nothing ran, so nothing is spent.
      if outcome == '-' then attempt = attempt - 1 end
      ended[to] = (ended[to] or 0) + 1
      if not kept then
        gone[#gone + 1] = id
      else
        if result ~= '' then redis.call('HSET', Q .. ':results', id, result) end
        changed[#changed + 1] = id
        -- The reason stays short here; the whole error lies in the history.
        changed[#changed + 1] = pack(to, token, attempt, crashes, handbacks, bit.band(flags, 7), due, start, node)
          .. string.format(' %.0f %s', ms, string.sub(reason, 1, 200))
        add_to(to, ms, id)
      end
    else
      if outcome == '-' then handbacks = handbacks + 1 else handbacks = 0 end
      if to ~= 't' then attempt = attempt - 1 end
      local when = ms + tonumber(delay)
      if to == 'q' then
        -- Handed back to the front: it keeps its due time, because nothing about the job made it late.
        changed[#changed + 1] = id
        changed[#changed + 1] = pack('q', token, attempt, crashes, handbacks, bit.band(flags, 15), due, start, node)
        place(id, redis.call('HGET', bucket(id), id), flags, true)
      else
        changed[#changed + 1] = id
        changed[#changed + 1] = pack(to, token, attempt, crashes, handbacks, bit.band(flags, 7), when, start, node)
        add_to(to, when, id)
        if not earliest[to] or when < earliest[to][1] then earliest[to] = {when, id} end
      end
    end
  end
end
if #left > 0 then redis.call('SREM', RUN, unpack(left)) end
if #gone > 0 then purge(gone) end
if #changed > 0 then redis.call('HSET', STATES, unpack(changed)) end
for letter, set in pairs(sets) do redis.call('ZADD', Q .. ':' .. SETS[letter], unpack(set)) end
for letter, count in pairs(ended) do
  redis.call('HINCRBY', Q .. ':totals', SETS[letter], count)
  if sets[letter] then trim(SETS[letter], keep[letter], most[letter], 2 * count + 8) end
end
for letter, first in pairs(earliest) do
  if redis.call('ZRANGE', Q .. ':' .. SETS[letter], 0, 0)[1] == first[2] then nudge('due') end
end
return out
