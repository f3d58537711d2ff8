-- blocked: jobs that wait for a chain of this queue.
-- in: chain, from which member or false, how many at most · out: ids, from which member to go on or false
--! reads

local LOOKS = 1000

local asked = unpack_record(ARGV[3])
local start, most = 'a' .. asked[1], math.min(asked[3], LOOKS)
local found, go_on = {}, false
local members = call('ZRANGEBYLEX', INDEX, asked[2] and '(' .. asked[2] or '[' .. start, '(' .. start .. TOP, 'LIMIT', 0, most)
for place, member in ipairs(members) do found[place] = string.sub(member, 18, 33) end
if #members == most then go_on = members[most] end
return reply({ found, go_on or false })
