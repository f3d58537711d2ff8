-- deliver: take messages of another queue (or of this one), each once and in order; those that were taken are passed over.
-- in: source, then number and message of each · out: how many jobs they removed, and what slots were answered
--! works

local asked = unpack_record(ARGV[3])
local source = asked[1]
local latest = tonumber(call('HGET', DATA, 'i' .. source) or nil) or 0
for _, one in ipairs(asked[2]) do
  if one[1] > latest then
    local message = unpack_record(one[2])
    post(QUEUE, unpack(message))
    latest = one[1]
  end
end
call('HSET', DATA, 'i' .. source, string.format('%.0f', latest))
refresh()
return reply({ dropped, answers })
