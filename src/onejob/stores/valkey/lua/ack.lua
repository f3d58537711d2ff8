-- ack: messages for a queue, up to a number, have been taken there.
-- in: target, number
--! works

local asked = unpack_record(ARGV[3])
local start = 'o' .. asked[1] .. '\0'
for _, member in ipairs(call('ZRANGEBYLEX', INDEX, '[' .. start, '[' .. start .. number(asked[2]))) do
  remove(member)
  call('HDEL', DATA, member)
end
return reply(false)
