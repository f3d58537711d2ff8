-- showing: a job as observers see it, and how much of jobs one call reads.

local read_bytes
on_begin(function() read_bytes = 0 end)

local function shown(id, head, card)
  local error, result = error_of(id), call('HGET', DATA, 'r' .. id)
  read_bytes = read_bytes + #card[PAYLOAD] + (error and #error or 0) + (result and #result or 0)
  return { id, head[STATE], head[SEQ], card[TASK], head[PRIORITY], head[ACCEPTED], head[UPDATED], head[DUE], head[EXPIRES],
    head[STARTED], head[ENDED], head[ATTEMPT], head[FAILURES], head[CRASHES], card[MAX_CRASHES], head[MISSES], card[ITEMS],
    head[WORKER] ~= '' and head[WORKER], head[ABORTING], head[FOLLOWS], head[CHAIN], head[PLACE_IN_CHAIN], card[KEY], head[DIGEST], card[PLAN],
    card[OPTIONS], card[ORIGIN], card[ORIGIN_QUEUE], head[LANE], head[BLOCKERS], card[PAYLOAD], call('HGET', DATA, 'p' .. id),
    result, error or false }
end

-- True once more would be too much for one call.
local function read_enough() return read_bytes > MOST_BYTES end
