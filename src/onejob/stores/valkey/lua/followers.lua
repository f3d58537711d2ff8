-- followers: jobs of this queue that start only after a chain has ended, in the order of their acceptance.
-- in: chain · out: ids
--! reads

local found = {}
for place, member in ipairs(range('f' .. unpack_record(ARGV[3])[1], -1)) do found[place] = string.sub(member, -16) end
table.sort(found, function(one, other) return head_of(one)[SEQ] < head_of(other)[SEQ] end)
return reply(found)
