-- ahead: how many ready jobs of its lane have their turn before a job, if that is ready.
-- in: id · out: a number
--! reads

local id = unpack_record(ARGV[3])[1]
local head = head_of(id)
local plan = head and head[LANE] and get('l', head[LANE])
if not plan or not (head[STATE] == PARKED or head[STATE] == WAITING) then return reply(0) end

local name, is_ordered = head[LANE] .. '\0', plan[L_CONCURRENCY] == 1
local kept = head[PLACE] == KEEPS_SLOT

-- How many members of a kind that is ordered by rank come before the job.
local function before(kind)
  local start = kind .. name
  if not is_ordered then return call('ZLEXCOUNT', INDEX, '[' .. start, '(' .. start .. rank(head)) end
  local found = 0
  for _, member in ipairs(range(start, -1)) do
    if read_number(member, #member - 21) < head[SEQ] then found = found + 1 end
  end
  return found
end

if kept then return reply(before('H')) end
local ready = is_ordered and call('ZLEXCOUNT', INDEX, '[t' .. name, '(t' .. name .. number(head[SEQ])) or before('q')
return reply(count('H' .. name) + before('y') + ready)
