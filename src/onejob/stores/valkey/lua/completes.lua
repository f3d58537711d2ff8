-- completes: whether a job that completes now under its lease would be completed: nobody else has it, or asked it to stop.
-- in: id, lease · out: 1 or 0
--! reads

local asked = unpack_record(ARGV[3])
local head = head_of(asked[1])
return reply(head and head[STATE] == RUNNING and head[LEASE] == asked[2] and head[ABORTING] == 0 and 1 or 0)
