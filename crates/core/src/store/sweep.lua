-- What Redis thinks one incarnation holds in a queue; changes nothing.
-- ARGV: 2 incarnation.
-- Returns {owner's value or '', entries fetched but not claimed, then id, token, 1 when a person asked to cancel it}.
local inc = ARGV[2]
local out = {redis.call('HGET', Q .. ':owners', inc) or '', redis.call('LLEN', Q .. ':p:' .. inc)}
local ids = redis.call('SMEMBERS', Q .. ':run:' .. inc)
table.sort(ids)
if #ids > 0 then
  local states = states_of(ids)
  for i, id in ipairs(ids) do
    local letter, token, _, _, _, flags
    if states[i] then letter, token, _, _, _, flags = parse(states[i]) end
    out[#out + 1] = id
    out[#out + 1] = letter == 'r' and token or '0'
    out[#out + 1] = flags and bit.band(flags, CANCEL) ~= 0 and 1 or 0
  end
end
return out
