-- dead_errors: dead letters that nobody has dealt with, by the first line of their error.
-- in: of which origin or false, from which member or false
-- out: line, how many, the newest and its number and when it was buried, and when the first and the last were; from where on
--! reads

local LOOKS = /* portion */

local asked = unpack_record(ARGV[3])
local start = asked[1] and 'd' .. asked[1] .. '\0' or 'd'
local members = call('ZRANGEBYLEX', INDEX, asked[2] and '(' .. asked[2] or '[' .. start, '(' .. start .. TOP, 'LIMIT', 0, LOOKS)
local lines, found, from = {}, {}, false
for place, member in ipairs(members) do
  local id = string.sub(member, -16)
  local head = head_of(id)
  if head and head[STATE] ~= COMPLETED and head[STATE] ~= REVOKED then
    local card = card_of(id)
    local line = string.match(error_of(id) or '', '^[^\n]*')
    local group, at = lines[line], head[ACCEPTED]
    read_bytes = read_bytes + #card[PAYLOAD]
    if not group then
      group = { line, 0, id, -1, at, at, at }
      lines[line], found[#found + 1] = group, group
    end
    group[2], group[6], group[7] = group[2] + 1, math.min(group[6], at), math.max(group[7], at)
    if head[SEQ] > group[4] then group[3], group[4], group[5] = id, head[SEQ], at end
  end
  if read_enough() or place == LOOKS then
    from = member
    break
  end
end
return reply({ found, from })
