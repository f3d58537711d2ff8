-- register: the store's desk knows which queues there are, and which workers.
-- in: queues, a worker or false: id, queues served, host, pid, concurrency, for how long it lives, and whether that counts only
-- if it is not known
-- out: until when the worker is alive, when the desk was born
--! works

local asked = unpack_record(ARGV[3])
for _, queue in ipairs(asked[1]) do add('Q' .. queue) end
local worker = asked[2]
local record = worker and get('u', worker[1])
if worker and not (record and worker[7]) then
  record = { worker[1], worker[2], worker[3], worker[4], worker[5], record and record[6] or NOW, NOW, NOW + worker[6] }
  add('U' .. worker[1])
  set('u', worker[1], record)
end
return reply({ record and record[8] or false, call('HGET', DATA, 'mborn') })
