-- settling: an attempt ends, guarded by id, state and lease; one that is refused changes nothing.

local ID, TOKEN, ENDS, DELAY, RESULT, ERROR, LETTER, COPY, THEN = 1, 2, 3, 4, 5, 6, 7, 8, 9
local MOVED, FAILED_BY, CRASHED_BY, MISSED_BY, IN_PLACE, ORPHANED, TAKEN = 10, 11, 12, 13, 14, 15, 16

local settle
do
  local SIMPLY_DONE = { false, false, COMPLETED, 0, false, false, false, false, false, 0, 0, 0, 0, false, false, false }

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
    local differs = card[TASK] ~= task_of(job) or card[PAYLOAD] ~= payload_of(job)
    return found[CHAIN] == (head[CHAIN] or id), differs and card[TASK]
  end

  -- Ends an attempt. One that simply completed is the job's id, its lease and, if there is one, its result; 1 says that it did.
  function settle(one, limits)
    local id, token, result
    if type(one) == 'string' then
      id, token, result, one = sub(one, 1, 16), sub(one, 17, 24), #one > 24 and sub(one, 25), SIMPLY_DONE
      if complete_plain(id, token, result) then
        if limits[Q_CONCURRENCY] then tell('work') end
        return 1
      end
    else
      id, token, result = one[ID], one[TOKEN], one[RESULT]
    end
    local head = head_of(id)
    if not head then return 'gone' end
    if head[STATE] ~= RUNNING or head[LEASE] ~= token then return { 'lost' } end
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
      if result then write('r' .. id, result) end
      if head[HAS_ERROR] then set_error(id, false) end
    elseif one[ERROR] then
      set_error(id, one[ERROR])
    end
    if lane then
      local plan = not ended and lane_plan(lane)
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
      following = { read_newcomer(following[1]), following[2] }
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
      return outcome == 'done' and 1 or { outcome }
    end
    if following then
      post(following[2], 'go_on', following[1], head[CHAIN] or id, head[ROOT_QUEUE] or QUEUE, head[PLACE_IN_CHAIN] + 1)
    end
    if state == FAILED and one[LETTER] then bury(id, one[LETTER], one[COPY]) end
    after_end(id, false)
    if limits[Q_CONCURRENCY] then tell('work') end
    return outcome == 'done' and 1 or { outcome, found }
  end
end

-- Reads in one call what settling these needs.
local function look_at_all(ends)
  local ids = {}
  for place, one in ipairs(ends) do ids[place] = type(one) == 'string' and sub(one, 1, 16) or one[ID] end
  fetch('j', ids, head_texts)
  local digests, without = {}, 0
  for place = 1, #ids do
    local text = head_texts[ids[place]]
    if text and #text ~= without then -- as long as others without a key: it has none either, or is looked for by itself
      local key_at, lane = parts_at_end(text)
      local size = key_at and string.byte(text, key_at)
      if size == 0 and lane == '' then without = #text end
      if size and size > 0 then digests[#digests + 1] = sub(text, key_at + 1, key_at + size) end
    end
  end
  if digests[1] then fetch('k', digests, key_texts) end
end
