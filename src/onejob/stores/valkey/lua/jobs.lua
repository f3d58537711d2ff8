-- jobs: a page of a queue's jobs that match a filter, newest first.
-- in: before which number or false, how many at most, a choice · out: jobs, and before which number to go on or false
--! reads

local MEMBERS, LOOKS = 4000, /* portion */

local asked = unpack_record(ARGV[3])
local limit, choice = asked[2], asked[3]
local most = choice[BY_IDS] and MEMBERS or LOOKS
local looked, go_on = 0, false
local pages = {}
for place, kind in ipairs({ 'O', 'Q' }) do
  pages[place] = call('ZREVRANGEBYLEX', INDEX, '(' .. kind .. (asked[1] and number(asked[1]) or TOP), '[' .. kind, 'LIMIT', 0, most)
end
local at = { 1, 1 }
local function seq(place) return pages[place][at[place]] and read_number(pages[place][at[place]], 2) or -1 end
for taken = 1, most do
  local place = seq(1) > seq(2) and 1 or 2
  local member = pages[place][at[place]]
  if not member then break end
  at[place] = at[place] + 1
  local id = string.sub(member, -16)
  if not choice[BY_IDS] or begins(id, choice[BY_IDS]) then
    looked = looked + 1
    choose(id, choice)
  end
  if chosen_number == limit or looked == LOOKS or taken == most or read_enough() then
    go_on = read_number(member, 2)
    break
  end
end
return reply({ choice_made(choice), go_on })
