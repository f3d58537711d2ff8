-- due: schedules whose next slot has come, the most overdue first, and when the next of the others is due.
-- in: limit · out: records, an instant or false
--! reads

local found = {}
for place, member in ipairs(until_time('N', NOW, unpack_record(ARGV[3])[1])) do found[place] = get('s', string.sub(member, 8)) end
local later = call('ZRANGEBYLEX', INDEX, '[N' .. instant(NOW + 1), '(N' .. TOP, 'LIMIT', 0, 1)[1]
return reply({ found, later and read_number(later, 2) or false })
