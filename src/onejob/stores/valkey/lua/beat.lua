-- beat: prolong a worker's leases in a queue, and read what it still holds there, some at a time.
-- in: worker, for how long, progress, behind which job or false · out: id, lease and whether it is asked to stop, of each job it
-- holds, and behind which one to go on or false; when the queue was born
--! works

local PAGE = 500

local sign = unpack_record(ARGV[3])
local worker = sign[1]
call('HSET', DATA, 'w' .. worker, NOW + sign[2])
for _, one in ipairs(sign[3]) do
  local head = head_of(one[1])
  if head and head[STATE] == RUNNING and head[WORKER] == worker then
    change(one[1])[UPDATED] = NOW
    call('HSET', DATA, 'p' .. one[1], one[2])
  end
end
flush()
local start = 'W' .. worker .. '\0'
local from = sign[4] and '(' .. start .. sign[4] or '[' .. start
local held = call('ZRANGEBYLEX', INDEX, from, '(' .. start .. TOP, 'LIMIT', 0, PAGE)
for place = 1, #held do held[place] = sub(held[place], -16) end
fetch('j', held, head_texts)
local behind = #held == PAGE and held[PAGE]
for place = 1, #held do
  local head = head_of(held[place])
  held[place] = { held[place], head[LEASE], head[ABORTING] }
end
return reply({ held, behind, call('HGET', DATA, 'mborn') })
