-- counts: how many jobs of a queue are in each state.
-- out: the letter of each state and a number, if it is not zero
--! reads

local found = {}
for state in pairs(WORDS) do
  local number_of = tonumber(call('HGET', DATA, 'mn' .. state) or nil) or 0
  if number_of > 0 then found[#found + 1] = { state, number_of } end
end
return reply(found)
