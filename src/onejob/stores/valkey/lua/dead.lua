-- dead: a page of a queue's dead letters that match a filter, newest first.
-- in: before which number or false, how many at most, a choice, of which origin or false
-- out: jobs, and before which number to go on or false
--! reads

local LOOKS, FEWEST = /* portion */, 10

local asked = unpack_record(ARGV[3])
local before, limit, choice = asked[1] and number(asked[1]) or TOP, asked[2], asked[3]
local origins, letters, floor = origins_of(asked[4]), {}, -1
local each = math.max(math.floor(LOOKS / math.max(#origins, 1)), FEWEST)
for _, origin in ipairs(origins) do
  local start = 'd' .. origin .. '\0'
  local members = call('ZREVRANGEBYLEX', INDEX, '(' .. start .. before, '[' .. start, 'LIMIT', 0, each)
  for _, member in ipairs(members) do letters[#letters + 1] = { read_number(member, #member - 21), string.sub(member, -16) } end
  -- Below where one origin was cut short, the others are not whole.
  if #members == each then floor = math.max(floor, letters[#letters][1]) end
end
table.sort(letters, function(one, other) return one[1] > other[1] end)
local go_on = false
for _, letter in ipairs(letters) do
  choose(letter[2], choice)
  if chosen_number == limit or letter[1] == floor or read_enough() then
    go_on = letter[1]
    break
  end
end
return reply({ choice_made(choice), go_on })
