-- chain: jobs of a chain in their order, from one of them on, as far as they are in this queue and one call can give them.
-- in: chain, from which job on · out: jobs, and where it goes on
--! reads

local MOST = /* portion */

local asked = unpack_record(ARGV[3])
local chain, id = asked[1], asked[2]
local found, queue = {}, QUEUE
while id and queue == QUEUE and #found < MOST and not read_enough() do
  local head, card = job_of(id)
  if not head or (head[CHAIN] or id) ~= chain then break end
  found[#found + 1] = shown(id, head, card)
  id, queue = head[NEXT], head[NEXT_QUEUE]
end
return reply({ found, id, id and queue or false })
