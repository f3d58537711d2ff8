-- outbox: the messages of a queue that are yet to be delivered, by whom they are for, in order.
-- in: how many at most · out: target, number and message of each
--! reads

local found, bytes = {}, 0
for place, member in ipairs(range('o', unpack_record(ARGV[3])[1])) do
  local message = call('HGET', DATA, member)
  found[place] = { string.sub(member, 2, -8), read_number(member, #member - 5), message }
  bytes = bytes + #message
  if bytes > MOST_BYTES then break end
end
return reply(found)
