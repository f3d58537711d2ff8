-- waiting_since: since when the longest waiting job of a queue has been due; dead letters do not count. From one priority to
-- the next by the index, however many jobs each has.
-- in: from which member or false, the earliest so far or false · out: the earliest or false, from which member to go on or false
--! reads

local LOOKS, PAGE = 2000, 200

local asked = unpack_record(ARGV[3])
local from, earliest, looked = asked[1] or 'R', asked[2], 0
local origins, jobs = origins_of(false), 0
for state in pairs(WORDS) do jobs = jobs + (tonumber(call('HGET', DATA, 'mn' .. state) or nil) or 0) end
if count('d') >= jobs then return reply({ false, false }) end -- nothing but dead letters

-- A member is R, four bytes of priority, six of the due time, six of the number, and the id.
local function is_dead_letter(member)
  for _, origin in ipairs(origins) do
    if has('d' .. origin .. '\0' .. string.sub(member, 12)) then return true end
  end
end

while looked < LOOKS do
  local members = call('ZRANGEBYLEX', INDEX, '(' .. from, '(R' .. TOP, 'LIMIT', 0, #origins == 0 and 1 or PAGE)
  if not members[1] then return reply({ earliest, false }) end
  for _, member in ipairs(members) do
    looked, from = looked + 1, member
    local due = read_number(member, 6)
    local is_later = earliest and due >= earliest
    if is_later or not is_dead_letter(member) then
      if not is_later then earliest = due end
      from = string.sub(member, 1, 5) .. TOP -- on to the next priority
      break
    end
  end
end
return reply({ earliest, from })
