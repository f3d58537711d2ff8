-- expired: running jobs of a queue whose workers have stopped beating, or are not on record, the longest running first.
-- Of very many, those of the first workers; fewer, if they are large.
-- in: limit · out: jobs as a claim gives them, with lease, worker and start
--! reads

local ENOUGH = 1000

local limit, found, from = unpack_record(ARGV[3])[1], {}, 'W'
while #found < math.max(ENOUGH, limit) do
  local member = call('ZRANGEBYLEX', INDEX, '[' .. from, '(W' .. TOP, 'LIMIT', 0, 1)[1]
  if not member then break end
  local worker = string.sub(member, 2, -18)
  local till = tonumber(call('HGET', DATA, 'w' .. worker) or nil)
  if not till or till <= NOW then
    for _, one in ipairs(range('W' .. worker .. '\0', limit)) do found[#found + 1] = sub(one, -16) end
  end
  from = 'W' .. worker .. '\0' .. TOP
end
fetch('j', found, head_texts)
table.sort(found, function(one, other) return head_of(one)[STARTED] < head_of(other)[STARTED] end)
local jobs, bytes = {}, 0
for place = 1, math.min(#found, limit) do
  local id = found[place]
  local head = head_of(id)
  if place % CARDS == 1 then
    if bytes > MOST_BYTES then break end
    fetch('c', found, card_texts, place, place + CARDS - 1)
  end
  bytes = bytes + #card_texts[id]
  jobs[place] = { id, head_texts[id], card_texts[id], head[CHAIN], head[LANE], head[LEASE], head[WORKER], head[STARTED] }
end
return reply(jobs)
