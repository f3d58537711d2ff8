-- among: those of these jobs that match a filter, as many as one call can look at.
-- in: ids, a choice · out: jobs, and how many were looked at
--! reads

local asked, looked = unpack_record(ARGV[3]), 0
for place, id in ipairs(asked[1]) do
  choose(id, asked[2])
  looked = place
  if read_enough() then break end
end
return reply({ choice_made(asked[2]), looked })
