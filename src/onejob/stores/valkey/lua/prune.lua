-- prune: remove chains that have been kept long enough, forgotten keys, lanes that only counted starts, and end what was not
-- started in time.
-- in: for each way to end until when it must have been (ms), how many of each · out: jobs, keys, expired, whether that was enough for once
--! works

local asked = unpack_record(ARGV[3])
local limit = asked[4]
local expired = expire_overdue(limit)
for _, member in ipairs(until_time('L', NOW, limit)) do touch(string.sub(member, 8)) end
refresh()
local bytes = 0
local function is_to_be_read(root)
  return head_of(root)[AWAITED] and call('ZRANGEBYLEX', INDEX, '[A' .. root, '(A' .. root .. TOP, 'LIMIT', 0, 1)[1]
end
for place, state in ipairs({ COMPLETED, FAILED, REVOKED }) do
  local roots = until_time('Z' .. state, asked[place], limit * 2)
  for place = 1, #roots do roots[place] = sub(roots[place], -16) end
  fetch('j', roots, head_texts)
  for place, root in ipairs(roots) do
    if dropped >= limit or bytes > MOST_BYTES then break end
    if place % CARDS == 1 then fetch('c', roots, card_texts, place, place + CARDS - 1) end
    if not is_to_be_read(root) then
      bytes = bytes + #card_texts[root]
      post(QUEUE, 'drop', root)
    end
  end
end
local keys = 0
for _, member in ipairs(until_time('G', NOW, limit)) do
  local digest = string.sub(member, 8)
  local record = key_of(digest)
  if record and not record[K_FOLLOWS] then
    forget_key(digest, record)
    keys = keys + 1
  end
end
refresh()
return reply({ dropped, keys, expired, bytes > MOST_BYTES })
