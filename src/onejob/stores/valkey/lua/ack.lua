-- ack: messages for a queue, up to a number, have been taken there, and go. If this queue has never given that number, it has fallen
-- back behind what it had handed over: what it has now are other messages, and nothing goes.
-- in: target, number · out: whether it has fallen back
--! works

local asked = unpack_record(ARGV[3])
local start, taken_to = 'o' .. asked[1] .. '\0', asked[2]
local first = range(start, 1)[1]
if not first or taken_to < read_number(first, #start + 1) then return reply(false) end
if not has(start .. number(taken_to)) then return reply(1) end
for _, member in ipairs(call('ZRANGEBYLEX', INDEX, '[' .. start, '[' .. start .. number(taken_to))) do
  remove(member)
  call('HDEL', DATA, member)
end
return reply(false)
