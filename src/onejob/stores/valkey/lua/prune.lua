-- prune: remove chains that have been kept long enough, forgotten keys, lanes that only counted starts, and end what was not
-- started in time.
-- in: for each way to end until when it must have been (ms), how many of each · out: jobs, keys, expired
--! works

local asked = unpack_record(ARGV[3])
local limit = asked[4]
local expired = expire_overdue(limit)
for _, member in ipairs(until_time('L', NOW, limit)) do touch(string.sub(member, 8)) end
refresh()
for place, state in ipairs({ COMPLETED, FAILED, REVOKED }) do
  for _, member in ipairs(until_time('Z' .. state, asked[place], limit * 2)) do
    if dropped >= limit then break end
    local root = string.sub(member, -16)
    if not range('A' .. root, 1)[1] then post(QUEUE, 'drop', root) end
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
return reply({ dropped, keys, expired })
