-- settle: end attempts, each guarded by id, state and lease, and claim the next; a refused one changes nothing.
-- in: settlements, an ask or false · out: what became of each, and what was claimed; fewer and nothing, if copies became too much
--! works

local asked, settled, limits = unpack_record(ARGV[3]), {}, queue_limits()
local ends = asked[1]
look_at_all(ends)
for place = 1, #ends do
  if copied > MOST_BYTES then break end
  settled[place] = settle(ends[place], limits)
end
refresh()
local ask = #settled == #ends and asked[2]
return reply({ settled, ask and claim(ask[1], ask[2], ask[3], ask[4], ask[5]) or false })
