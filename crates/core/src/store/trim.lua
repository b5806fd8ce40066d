-- Keeps the ended jobs of a queue within their age and count when nothing settles there.
-- ARGV: 2 and 3 how long (ms) and how many succeeded and cancelled jobs are kept, 4 and 5 the same for dead ones, 6 most jobs a set.
-- Returns how many jobs it removed.
local limit = tonumber(ARGV[6])
return trim('succeeded', tonumber(ARGV[2]), tonumber(ARGV[3]), limit)
  + trim('dead', tonumber(ARGV[4]), tonumber(ARGV[5]), limit)
  + trim('cancelled', tonumber(ARGV[2]), tonumber(ARGV[3]), limit)
