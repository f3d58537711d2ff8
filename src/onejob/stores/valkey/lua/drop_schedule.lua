-- drop_schedule: remove a schedule; its jobs stay as they are.
-- in: id · out: 1 if there was one
--! works

local id = unpack_record(ARGV[3])[1]
local found = get('s', id)
if not found then return reply(0) end
if found[S_PAUSED] == 0 then remove('N' .. instant(found[S_NEXT]) .. id) end
drop('s', id)
return reply(1)
