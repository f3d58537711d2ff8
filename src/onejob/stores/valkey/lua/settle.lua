-- settle: end attempts, each guarded by id, state and lease, and claim the next; a refused one changes nothing.
-- in: settlements, an ask or false · out: what became of each, and what was claimed
--! records opening judge lanes ending making accepting claiming

local ID, TOKEN, ENDS, DELAY, RESULT, ERROR, LETTER, COPY, THEN = 1, 2, 3, 4, 5, 6, 7, 8, 9
local MOVED, FAILED_BY, CRASHED_BY, MISSED_BY, IN_PLACE, ORPHANED, TAKEN = 10, 11, 12, 13, 14, 15, 16

local limits = queue_limits()

local function is_alive(worker)
  local till = tonumber(call('HGET', DATA, 'w' .. worker) or nil)
  return till and till > NOW
end

-- Whether a chain can go on with that job, and the task of what is there instead, if that is another. `elsewhere` is what
-- somebody put into another queue under the same id.
local function next_of(job, queue, head, id, elsewhere)
  if elsewhere then return false, elsewhere[1] end
  if queue ~= QUEUE then return true end
  local found = head_of(job[N_ID])
  if not found then return true end
  local card = card_of(job[N_ID])
  local differs = card[TASK] ~= job[N_TASK] or card[PAYLOAD] ~= job[N_PAYLOAD]
  return found[CHAIN] == (head[CHAIN] or id), differs and card[TASK]
end

local function settle(one)
  local id = one[ID]
  local head = head_of(id)
  if not head or head[STATE] ~= RUNNING or head[LEASE] ~= one[TOKEN] then return { 'lost' } end
  if one[ORPHANED] and is_alive(head[WORKER]) then return { 'lost' } end
  change(id)
  local lane, aborting = head[LANE], head[ABORTING] == 1
  local state = aborting and REVOKED or one[ENDS]
  if not state then state = one[DELAY] > 0 and DELAYED or lane and PARKED or WAITING end
  local ended = state == COMPLETED or state == FAILED or state == REVOKED
  head[STATE], head[ENDED] = state, ended and NOW
  if not ended and not one[IN_PLACE] then head[DUE] = NOW + one[DELAY] end
  head[ATTEMPT], head[FAILURES] = head[ATTEMPT] + one[MOVED], head[FAILURES] + one[FAILED_BY]
  head[CRASHES], head[MISSES] = head[CRASHES] + one[CRASHED_BY], head[MISSES] + one[MISSED_BY]
  if state == COMPLETED then
    if one[RESULT] then call('HSET', DATA, 'r' .. id, one[RESULT]) end
    if head[HAS_ERROR] then set_error(id, false) end
  elseif one[ERROR] then
    set_error(id, one[ERROR])
  end
  if lane then
    local plan = lane_plan(lane)
    if ended then
      head[PLACE] = false
    elseif plan and plan[L_HOLD] == 1 then
      head[PLACE] = KEEPS_SLOT
    else
      head[PLACE] = state == PARKED and READY or NOT_READY
    end
    touch(lane)
  end
  local following, outcome, found = state == COMPLETED and one[THEN], aborting and 'revoked' or 'done', false
  if following then
    local goes_on
    goes_on, found = next_of(following[1], following[2], head, id, one[TAKEN])
    if found then outcome = 'diverged' end
    if goes_on then
      head[NEXT], head[NEXT_QUEUE] = following[1][N_ID], following[2]
    else
      following = false
    end
  end
  if not ended then
    tell('work')
    return { outcome }
  end
  if following then
    post(following[2], 'go_on', following[1], head[CHAIN] or id, head[ROOT_QUEUE] or QUEUE, head[PLACE_IN_CHAIN] + 1)
  end
  if state == FAILED and one[LETTER] then bury(id, one[LETTER], one[COPY]) end
  after_end(id, false)
  if limits[Q_CONCURRENCY] then tell('work') end
  return { outcome, found }
end

local asked = unpack_record(ARGV[3])
local settled = {}
for place, one in ipairs(asked[1]) do settled[place] = settle(one) end
refresh()
local ask = asked[2]
return reply({ settled, ask and claim(ask[1], ask[2], ask[3], ask[4]) or false })
