-- beat: prolong a worker's leases in a queue, and read what it still holds there.
-- in: worker, for how long, progress · out: id, lease and whether it is asked to stop, of each job it holds
--! works

local sign = unpack_record(ARGV[3])
local worker = sign[1]
call('HSET', DATA, 'w' .. worker, NOW + sign[2])
for _, one in ipairs(sign[3]) do
  local head = head_of(one[1])
  if head and head[STATE] == RUNNING and head[WORKER] == worker then
    change(one[1])[UPDATED] = NOW
    call('HSET', DATA, 'p' .. one[1], one[2])
  end
end
local held = {}
for place, member in ipairs(range('W' .. worker .. '\0', -1)) do
  local id = string.sub(member, -16)
  local head = head_of(id)
  held[place] = { id, head[LEASE], head[ABORTING] }
end
return reply(held)
