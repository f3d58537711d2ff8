-- job: these jobs, as many of them as one call can give.
-- in: ids · out: a job each, or false if it is not here
--! reads

local found = {}
for place, id in ipairs(unpack_record(ARGV[3])) do
  local head, card = job_of(id)
  found[place] = head and shown(id, head, card) or false
  if read_enough() then break end
end
return reply(found)
