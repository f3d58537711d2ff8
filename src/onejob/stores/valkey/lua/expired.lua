-- expired: running jobs of a queue whose workers have stopped beating, or are not on record, the longest running first.
-- in: limit · out: jobs as a claim gives them, with lease, worker and start
--! reads

local limit, found, from = unpack_record(ARGV[3])[1], {}, 'W'
while true do
  local member = call('ZRANGEBYLEX', INDEX, '[' .. from, '(W' .. TOP, 'LIMIT', 0, 1)[1]
  if not member then break end
  local worker = string.sub(member, 2, -18)
  local till = tonumber(call('HGET', DATA, 'w' .. worker) or nil)
  if not till or till <= NOW then
    for _, one in ipairs(range('W' .. worker .. '\0', limit)) do
      local id = string.sub(one, -16)
      local head = job_of(id)
      found[#found + 1] = { id, head_texts[id], card_texts[id], head[CHAIN], head[LANE], head[LEASE], worker, head[STARTED] }
    end
  end
  from = 'W' .. worker .. '\0' .. TOP
end
table.sort(found, function(one, other) return one[8] < other[8] end)
return reply({ unpack(found, 1, math.min(#found, limit)) })
