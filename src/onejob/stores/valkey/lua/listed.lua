-- listed: jobs that match a filter, by members of the index that name them, in no order.
-- in: where members begin, at which of those to go on, from which member, a choice
-- out: jobs, how many had the states, at which beginning and from which member to go on or false
--! reads

local LOOKS = /* portion */

local asked = unpack_record(ARGV[3])
local beginnings, at, from, choice = asked[1], asked[2], asked[3], asked[4]
local with_states, looked = 0, 0

local function look(id)
  if choose(id, choice) then with_states = with_states + 1 end
  looked = looked + 1
end

while beginnings[at] do
  local start = beginnings[at]
  local by_id = start == 'h' -- one member for each chain that a job waits for
  local members = call('ZRANGEBYLEX', INDEX, from and '(' .. from or '[' .. start, '(' .. start .. TOP, 'LIMIT', 0,
    by_id and 1 or LOOKS - looked)
  for _, member in ipairs(members) do
    from = by_id and string.sub(member, 1, 17) .. TOP or member
    look(by_id and string.sub(member, 2, 17) or string.sub(member, -16))
    if read_enough() then break end
  end
  if looked >= LOOKS or read_enough() then return reply({ choice_made(choice), with_states, at, from or false }) end
  if not (by_id and members[1]) then at, from = at + 1, nil end
end
return reply({ choice_made(choice), with_states, false, false })
