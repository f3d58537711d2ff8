-- registered: the queues and the workers that the store's desk knows.
-- out: names of queues, records of workers
--! reads

local queues, workers = {}, {}
for place, member in ipairs(range('Q', -1)) do queues[place] = string.sub(member, 2) end
for _, member in ipairs(range('U', -1)) do
  local found = get('u', string.sub(member, 2))
  if found then workers[#workers + 1] = found end
end
return reply({ queues, workers })
