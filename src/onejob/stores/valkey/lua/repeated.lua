-- repeated: which of these calls were accepted before: by the id of a job, or among the calls that changed a key's holder.
-- in: id, digest or false · out: 1 or 0 each
--! reads records

local found = {}
for place, one in ipairs(unpack_record(ARGV[3])) do
  local known = head_of(one[1])
  local record = one[2] and get('k', one[2])
  local card = record and card_of(record[K_HOLDER])
  for _, applied in ipairs(card and card[CALLS] or {}) do known = known or applied[1] == one[1] end
  found[place] = (known or record and record[K_HOLDER] == one[1]) and 1 or 0
end
return reply(found)
