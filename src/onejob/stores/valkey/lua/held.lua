-- held: how many jobs of this queue each of these workers runs.
-- in: workers · out: a number each
--! reads

local found = {}
for place, worker in ipairs(unpack_record(ARGV[3])) do found[place] = count('W' .. worker .. '\0') end
return reply(found)
