-- outbox: the messages of a queue that are yet to be delivered, by whom they are for, in order.
-- in: how many · out: target, number and message of each
--! reads

local found = {}
for place, member in ipairs(range('o', unpack_record(ARGV[3])[1])) do
  found[place] = { string.sub(member, 2, -8), read_number(member, #member - 5), call('HGET', DATA, member) }
end
return reply(found)
