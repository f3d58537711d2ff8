-- ends: the last jobs of chains, as far as they are in this queue, and as many as one call can give.
-- in: chain (false: whatever it is) and from which of its jobs on, each; whether the last jobs are wanted whole
-- out: for each false if that job is not here, 0 if it is another chain's; or chain, id, state, error, where it goes on, job
--! reads

local HOPS = 1000

local asked, found, hops = unpack_record(ARGV[3]), {}, 0

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

local function end_of(wanted, start)
  local head = head_of(start)
  if not head then return false end
  local chain = head[CHAIN] or start
  if wanted and wanted ~= chain then return 0 end
  local id, last_head, next_id = follow(chain, start, head)
  local error = last_head[ENDED] and error_of(id) or false
  read_bytes = read_bytes + (error and #error or 0)
  return { chain, id, last_head[STATE], error, next_id, last_head[NEXT_QUEUE],
    asked[2] and shown(id, last_head, card_of(id)) }
end

for place, one in ipairs(asked[1]) do
  found[place] = end_of(one[1], one[2])
  if read_enough() or hops >= HOPS then break end
end
return reply(found)
