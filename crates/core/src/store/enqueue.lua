-- Stores jobs of one queue: new → scheduled | ready. Idempotent by id, and as a whole by its receipt.
-- ARGV: 2 call id, 3 receipt lifetime in ms, then for each job: id, due (n | i<ms from now> | a<instant in ms>), head,
--       extension, value, unique key, until, dedupe key, dedupe span in ms.
-- Returns one line per job: q<due ms> or d<due ms> when stored, =<id> when it is a duplicate of that job.
local receipt = Q .. ':rc:' .. ARGV[2]
local before = redis.call('GET', receipt)
if before then return before end

local out, ready, first_due, first_id, stored, bell = {}, {}, nil, nil, 0, false
for i = 4, #ARGV, 9 do
  local id, due, head, extension, value = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local unique, till, dedupe, span = ARGV[i + 5], ARGV[i + 6], ARGV[i + 7], ARGV[i + 8]
  local where = bucket(id)
  local twin
  if redis.call('HEXISTS', where, id) == 1 then twin = id end
  if not twin and dedupe ~= '' then twin = redis.call('GET', Q .. ':d:' .. dedupe) or nil end
  if not twin and till ~= '-' then
    local holder = redis.call('GET', Q .. ':u:' .. unique)
    if holder and living(holder) then twin = holder end
  end
  if twin then
    out[#out + 1] = '=' .. twin
  else
    local kind, number = string.sub(due, 1, 1), tonumber(string.sub(due, 2))
    local at = ms
    -- Past means now: such a job is not late, it was handed in late. One that minds keeps its time, and goes by the schedule, so
    -- that its own policy is asked.
    local minds = string.sub(head, 3, 3) ~= 'r'
    if kind == 'i' then at = ms + number elseif kind == 'a' and (number > ms or minds) then at = number end
    -- A caller's id may be used again while an old entry of it still lies in a list: the stamp tells them apart.
    local own = string.find(where, ':b:h', #Q + 1, true)
    local stamp = own and string.format('%.0f', us) or '0'
    -- What a record that was deleted by hand has left behind would end its successor.
    if own and redis.call('HEXISTS', Q .. ':s', id) == 1 then
      unlist(id)
      purge({id})
    end
    local mark, text = '-', ''
    if own or extension ~= '' then
      mark = '+'
      text = stamp .. ' ' .. (extension == '' and '0 0 - ' or extension) .. '\n'
    end
    local function time(t) return struct.pack('>I2I4', math.floor(t / 4294967296), t % 4294967296) end
    redis.call('HSET', where, id, head .. mark .. time(ms) .. time(at) .. text .. value)
    if till ~= '-' then redis.call('SET', Q .. ':u:' .. unique, id) end
    if dedupe ~= '' then redis.call('SET', Q .. ':d:' .. dedupe, id, 'PX', span) end
    if at == ms then
      local band = string.sub(head, 2, 2)
      local list = ready[band]
      if not list then list = {}; ready[band] = list end
      list[#list + 1] = own and (id .. '#' .. stamp) or id
      if band ~= '2' then bell = true end
      out[#out + 1] = string.format('q%.0f', at)
    else
      redis.call('ZADD', Q .. ':scheduled', at, id)
      if not first_due or at < first_due then first_due, first_id = at, id end
      out[#out + 1] = string.format('d%.0f', at)
    end
    stored = stored + 1
  end
end
for band, list in pairs(ready) do redis.call('LPUSH', Q .. ':r' .. band, unpack(list)) end
if bell then ring() end
if stored > 0 then redis.call('HINCRBY', Q .. ':totals', 'enqueued', stored) end
if first_id and redis.call('ZRANGE', Q .. ':scheduled', 0, 0)[1] == first_id then nudge('due') end
local answer = table.concat(out, '\n')
redis.call('SET', receipt, answer, 'PX', ARGV[3])
return answer
