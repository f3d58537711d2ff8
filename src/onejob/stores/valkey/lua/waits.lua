-- waits: whom chains wait for, by their last jobs as far as they are in this queue.
-- in: jobs · out: for each, nothing if it is gone; where it goes on; or the chains that it is held up by and their queues
--! reads

local found = {}
for place, id in ipairs(unpack_record(ARGV[3])) do
  local head = head_of(id)
  while head and head[NEXT] and head[NEXT_QUEUE] == QUEUE do
    id = head[NEXT]
    head = head_of(id)
  end
  if not head then
    found[place] = false
  elseif head[NEXT] then
    found[place] = { head[NEXT], head[NEXT_QUEUE] }
  else
    local chains = {}
    if head[STATE] == BLOCKED then
      if head[FOLLOWS] then chains[1] = { head[FOLLOWS], QUEUE } end
      for _, chain in ipairs(head[BLOCKERS] > 0 and get('b', id) or {}) do
        if has('h' .. id .. chain[1]) then chains[#chains + 1] = chain end
      end
    end
    found[place] = { false, chains }
  end
end
return reply(found)
