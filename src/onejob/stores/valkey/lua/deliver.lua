-- deliver: take messages of another queue (or of this one), each once and in order; those that were taken are passed over.
-- They are all that their sender has from the first of them on. If there is none with the number of the last one taken, but some
-- before it and some after, he has fallen back: nothing is taken before that is cleared up.
-- in: source, number and message of each, a number or false: if it is still that of the last one taken, it is a lost one's ·
-- out: how many jobs they removed, what slots were answered, the number of the last one taken
--! works

local asked = unpack_record(ARGV[3])
local source, messages = asked[1], asked[2]
local latest = tonumber(call('HGET', DATA, 'i' .. source) or nil) or 0
if latest == asked[3] then latest = 0 end
local place = 1
while messages[place] and messages[place][1] <= latest do place = place + 1 end
if messages[place] and place > 1 and messages[place - 1][1] < latest then return reply({ 0, NONE, latest }) end
for at = place, #messages do
  post(QUEUE, unpack(unpack_record(messages[at][2])))
  latest = messages[at][1]
end
call('HSET', DATA, 'i' .. source, string.format('%.0f', latest))
refresh()
return reply({ dropped, answers, latest })
