-- release: make a key vacant, if a holder is named while it has it; its holder lives on without it.
-- in: digest, holder or false · out: who had it
--! works

local asked = unpack_record(ARGV[3])
local record = key_of(asked[1])
if not record or (asked[2] and record[K_HOLDER] ~= asked[2]) then return reply(false) end
forget_key(asked[1], record)
return reply(record[K_HOLDER])
