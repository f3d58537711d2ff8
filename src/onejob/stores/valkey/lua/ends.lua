-- ends: the last jobs of chains, as far as they are in this queue, and as many as one call can give.
-- in: chain (false: whatever it is) and from which of its jobs on, each; how much of the last jobs is wanted: 0 nothing more, 1 task
-- and result, 2 all
-- out: for each false if that job is not here, 0 if it is another chain's; or chain, id, state, error, where it goes on, what is wanted
--! reads

local HOPS, OUTCOME, WHOLE = 1000, 1, 2

local asked, found, hops = unpack_record(ARGV[3]), {}, 0
local starts, wanted_part = {}, asked[2]
for place, one in ipairs(asked[1]) do starts[place] = one[2] end
fetch('j', starts, head_texts)

-- Goes on from a job to the last of its chain that is here; the third says who may follow.
local function follow(chain, id, head)
  while head[NEXT] and head[NEXT_QUEUE] == QUEUE and hops < HOPS do
    local after = head_of(head[NEXT])
    if not after then break end
    if after[CHAIN] ~= chain then return id, head, false end
    id, head, hops = head[NEXT], after, hops + 1
  end
  return id, head, head[NEXT]
end

local function outcome_of(id)
  local found = call('HMGET', DATA, 'c' .. id, 'r' .. id)
  local text, result = found[1], found[2]
  local at, options_at = card_parts(text)
  read_bytes = read_bytes + #text + (result and #result or 0)
  return { sub(text, at, options_at - 1), result }
end

local function end_of(wanted, start)
  local head = head_of(start)
  if not head then return false end
  local chain = head[CHAIN] or start
  if wanted and wanted ~= chain then return 0 end
  local id, last_head, next_id = follow(chain, start, head)
  local error = last_head[ENDED] and error_of(id) or false
  read_bytes = read_bytes + (error and #error or 0)
  local part = wanted_part == OUTCOME and outcome_of(id) or wanted_part == WHOLE and shown(id, last_head, card_of(id))
  return { chain, id, last_head[STATE], error, next_id, last_head[NEXT_QUEUE], part }
end

for place, one in ipairs(asked[1]) do
  found[place] = end_of(one[1], one[2])
  if read_enough() or hops >= HOPS then break end
end
return reply(found)
