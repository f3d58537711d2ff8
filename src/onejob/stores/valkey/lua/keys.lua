-- keys: a page of a queue's keys, the most recently taken first; with a text, those that read so.
-- in: from which member or false, how many at most, a text or false
-- out: since and digest of each, from which member to go on or false
--! reads

local LOOKS = 500

local asked = unpack_record(ARGV[3])
local limit, text = asked[2], asked[3]
local most = text and LOOKS or math.min(limit, LOOKS)
local found, go_on = {}, false
for place, member in ipairs(call('ZREVRANGEBYLEX', INDEX, '(' .. (asked[1] or 'K' .. TOP), '[K', 'LIMIT', 0, most)) do
  local digest = string.sub(member, 8)
  local record = text and key_of(digest)
  if not text or record and record[K_TEXT] == text then found[#found + 1] = { read_number(member, 2), digest } end
  if #found == limit or place == most then
    go_on = member
    break
  end
end
return reply({ found, go_on })
