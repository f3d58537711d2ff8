-- keys: a page of a queue's keys, the most recently taken first; with a text, those that read so.
-- in: from which members of either kind or false, how many at most, a text or false
-- out: since and digest of each, from which members to go on or false
--! reads

local LOOKS = /* portion */

local asked = unpack_record(ARGV[3])
local limit, text, ends = asked[2], asked[3], asked[1] or { 'K' .. TOP, 'Q' .. TOP }
local most = text and LOOKS or math.min(limit, LOOKS)
local alone = call('ZREVRANGEBYLEX', INDEX, '(' .. ends[1], '[K', 'LIMIT', 0, most)
local held = call('ZREVRANGEBYLEX', INDEX, '(' .. ends[2], '[Q', 'LIMIT', 0, most)
local ids = {}
for place, member in ipairs(held) do ids[place] = sub(member, -16) end
fetch('j', ids, head_texts)

local found, go_on = {}, false
local function take_it(since, digest)
  local record = text and key_of(digest)
  if not text or record and record[K_TEXT] == text then found[#found + 1] = { since, digest } end
end

local at, beside = 1, 1
for looked = 1, most do
  local member, holder = alone[at], ids[beside] and head_of(ids[beside])
  if not member and not holder then break end
  if not holder or member and read_number(member, 2) >= holder[ACCEPTED] then
    take_it(read_number(member, 2), sub(member, 8))
    ends[1], at = member, at + 1
  else
    local record = key_of(holder[DIGEST])
    if record and record[K_HOLDER] == ids[beside] and is_shown(holder[DIGEST], record, holder) then
      take_it(holder[ACCEPTED], holder[DIGEST])
    end
    ends[2], beside = held[beside], beside + 1
  end
  if #found == limit or looked == most then
    go_on = ends
    break
  end
end
return reply({ found, go_on })
