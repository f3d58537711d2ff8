-- repeated: which of these calls were accepted before: by the id of a job, or among the calls that changed a key's holder.
-- in: id, digest or false · out: 1 or 0 each
--! reads

local found = {}
for place, one in ipairs(unpack_record(ARGV[3])) do
  local known = head_of(one[1])
  local record = one[2] and key_of(one[2])
  local holder = record and head_of(record[K_HOLDER])
  known = known or holder and applied_before(calls_of(record[K_HOLDER], holder), one[1])
  found[place] = (known or record and record[K_HOLDER] == one[1]) and 1 or 0
end
return reply(found)
