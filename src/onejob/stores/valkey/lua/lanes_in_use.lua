-- lanes_in_use: a page of a queue's lanes in use, by key.
-- in: after which key or false, how many at most · out: lanes as `lane` gives them, after which key to go on or false
--! reads

local LOOKS = 25

-- The next key that anything in the index belongs to: a live job, or a start.
local function next_lane(after)
  local best
  for _, kind in ipairs({ 's', 't', 'v', 'S' }) do
    -- No key holds a NUL: behind one stands what belongs to it, and after that the next.
    local member = call('ZRANGEBYLEX', INDEX, '[' .. kind .. (after and after .. '\1' or '\1'), '(' .. kind .. TOP, 'LIMIT', 0, 1)[1]
    local lane = member and string.match(member, '^.([^%z]*)')
    if lane and (not best or comes_before(lane, best)) then best = lane end
  end
  return best
end

local asked, found, looked = unpack_record(ARGV[3]), {}, 0
local lane = next_lane(asked[1])
while lane and looked < LOOKS and #found < asked[2] do
  local seen = view(lane)
  if seen then found[#found + 1] = seen end
  looked = looked + 1
  if looked == LOOKS or #found == asked[2] then return reply({ found, lane }) end
  lane = next_lane(lane)
end
return reply({ found, false })
