-- claim: start waiting jobs for one worker, within the limits of their queue. Which job of a lane may start now has been
-- settled before: only those wait.

local AT_A_TIME, GRACE = 1000, 60000

-- Lets in what has become due; false if that was too much for once, and a claim might pass an older job of a lane.
local function promote()
  for _, member in ipairs(until_time('D', NOW, AT_A_TIME)) do
    local id = string.sub(member, -16)
    change(id)[STATE] = WAITING
  end
  local laned = until_time('E', NOW, AT_A_TIME)
  for _, member in ipairs(laned) do
    local id = string.sub(member, -16)
    local head = change(id)
    head[STATE] = PARKED
    if head[PLACE] == NOT_READY then head[PLACE] = READY end
    touch(head[LANE])
  end
  for _, member in ipairs(until_time('L', NOW, AT_A_TIME)) do touch(string.sub(member, 8)) end
  -- A lane that a clock since set back has closed for too long is looked at now.
  local latest = last('L', 1)[1]
  if latest then
    local plan = lane_plan(string.sub(latest, 8))
    if plan and plan[L_PER] and plan[L_OPENS] - plan[L_PER] > NOW then touch(string.sub(latest, 8)) end
  end
  refresh()
  return #laned < AT_A_TIME
end

local function first_time(kind)
  local member = range(kind, 1)[1]
  return member and read_number(member, 2)
end

local function start(id, worker, lease, limits)
  local head, card = change(id), card_of(id)
  head[STATE], head[ATTEMPT], head[LEASE], head[WORKER], head[STARTED] = RUNNING, head[ATTEMPT] + 1, lease, worker, NOW
  if limits[Q_MAX] then record_start('', id, lease) end
  local lane = head[LANE]
  if lane then
    local plan = lane_plan(lane)
    if plan and plan[L_MAX] then
      record_start(lane, id, lease)
      touch(lane)
    end
  end
  return { id, card[TASK], card[PAYLOAD], card[OPTIONS], head[ATTEMPT], head[FAILURES], head[CRASHES], card[MAX_CRASHES],
    head[MISSES], card[ACCEPTED], head[DUE], head[CHAIN], head[PLACE_IN_CHAIN], card[KEY], lane, head[BLOCKERS] }
end

local function queue_limits() return get('m', 'limits') or { false, false, false, false } end

-- How many may start, and when the queue's own rate lets one more start.
local function room_of(limits)
  local room, opens = math.huge, nil
  if limits[Q_CONCURRENCY] then room = math.max(limits[Q_CONCURRENCY] - count('W'), 0) end
  if limits[Q_MAX] then
    local started = starts('', limits[Q_PER])
    local left = math.max(limits[Q_MAX] - started, 0)
    if left == 0 then opens = opens_at('', limits[Q_MAX], limits[Q_PER], started, 0) end
    room = math.min(room, left)
  end
  return room, opens
end

-- Starts up to `limit` jobs; returns them, how long until time brings more, and whether one must ask again first.
local function claim(worker, limit, lease, alive_until)
  local more_overdue = expire_overdue(AT_A_TIME) == AT_A_TIME
  refresh()
  local till = tonumber(call('HGET', DATA, 'w' .. worker) or nil)
  if not till or alive_until and alive_until > till then -- it may have beaten since it last claimed here
    call('HSET', DATA, 'w' .. worker, alive_until or NOW + GRACE)
  end
  local jobs, soonest = {}, more_overdue and NOW or nil
  local limits = queue_limits()
  if limits[Q_PAUSED] then return { jobs, more_overdue and 0 or false, 0 } end
  local complete = promote()
  if complete then
    local room, opens = room_of(limits)
    local wanted = math.min(limit, room)
    if wanted > 0 then
      for _, member in ipairs(range('R', wanted)) do
        local id = string.sub(member, -16)
        local head = job_of(id)
        if not (head[EXPIRES] and head[EXPIRES] <= NOW) then jobs[#jobs + 1] = start(id, worker, lease, limits) end
      end
      refresh()
      if #jobs == room then opens = select(2, room_of(limits)) end
    end
    soonest = opens and math.min(opens, soonest or opens) or soonest
  end
  for _, kind in ipairs({ 'D', 'E', 'L' }) do
    local at = first_time(kind)
    if at then soonest = math.min(at, soonest or at) end
  end
  return { jobs, soonest and math.max(soonest - NOW, 0) or false, complete and 0 or 1 }
end
