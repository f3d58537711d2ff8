-- roots: the first jobs of the chains that these jobs belong to.
-- in: ids · out: for each the chain and its queue, or false if the job is not here
--! reads

local found = {}
for place, id in ipairs(unpack_record(ARGV[3])) do
  local head = head_of(id)
  found[place] = head and { head[CHAIN] or id, head[ROOT_QUEUE] or QUEUE } or false
end
return reply(found)
