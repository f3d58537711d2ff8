-- known: which of these jobs are in this queue.
-- in: ids · out: 1 or 0 each
--! reads

local found = {}
for place, id in ipairs(unpack_record(ARGV[3])) do found[place] = call('HEXISTS', DATA, 'j' .. id) end
return reply(found)
