-- lanes: whose turn it is. Slots are the jobs that take them, rates the starts they still count. Operations `touch` a lane
-- whenever a job of it becomes ready, starts, ends or goes away, and `refresh` once before they reply: then exactly
-- those whose turn it is are waiting, and a claim need not know of lanes.

local touched = {}
local function touch(lane) if lane then touched[lane] = true end end

local function lane_plan(lane) return get('l', lane) end

-- Lets a lane's limits be these from now on; returns those that were others before.
local function put_lane(lane, concurrency, max, per, hold)
  local former = lane_plan(lane)
  if former then
    if former[L_CONCURRENCY] == concurrency and former[L_MAX] == max and former[L_PER] == per and former[L_HOLD] == hold then
      return
    end
    if former[L_OPENS] then remove('L' .. instant(former[L_OPENS]) .. lane) end
    if former[L_MAX] and not max then
      local start = 'S' .. lane .. '\0'
      call('ZREMRANGEBYLEX', INDEX, '[' .. start, '(' .. start .. TOP)
    end
  end
  set('l', lane, { concurrency, max, per, hold, false })
  return former
end

-- How many starts a rate still counts; those that it does not are forgotten. Starts that a clock since set back has left
-- in the future count from now.
local function starts(lane, per)
  local start = 'S' .. lane .. '\0'
  call('ZREMRANGEBYLEX', INDEX, '[' .. start, '(' .. start .. instant(NOW - per + 1))
  for _, member in ipairs(call('ZRANGEBYLEX', INDEX, '[' .. start .. instant(NOW + 1), '(' .. start .. TOP)) do
    remove(member)
    add(start .. instant(NOW) .. string.sub(member, #start + 7))
  end
  return count(start)
end

-- When one more than `reserved` may start; nothing if time alone does not bring it.
local function opens_at(lane, max, per, started, reserved)
  local nth = started - max + reserved + 1
  if nth > started or nth <= 0 then return end
  local start = 'S' .. lane .. '\0'
  local member = call('ZRANGEBYLEX', INDEX, '[' .. start, '(' .. start .. TOP, 'LIMIT', nth - 1, 1)[1]
  return member and read_number(member, #start + 1) + per
end

local function record_start(lane, id, lease) add('S' .. lane .. '\0' .. instant(NOW) .. id .. lease) end

local function look_again(lane, plan, opens)
  if plan[L_OPENS] == (opens or false) then return end
  if plan[L_OPENS] then remove('L' .. instant(plan[L_OPENS]) .. lane) end
  plan[L_OPENS] = opens or false
  if opens then add('L' .. instant(opens) .. lane) end
  set('l', lane, plan)
end

local function forget_lane(lane, plan)
  if plan[L_OPENS] then remove('L' .. instant(plan[L_OPENS]) .. lane) end
  drop('l', lane)
end

-- The jobs behind members of a lane, whose id comes last.
local function jobs_of(found, jobs)
  for _, member in ipairs(found) do jobs[#jobs + 1] = string.sub(member, -16) end
  return jobs
end
local function before_in_order(one, other) return head_of(one)[SEQ] < head_of(other)[SEQ] end
local function before_by_rank(one, other) -- not by their ranks: Lua compares texts as the server's locale does
  local head, second = head_of(one), head_of(other)
  if head[PRIORITY] ~= second[PRIORITY] then return head[PRIORITY] > second[PRIORITY] end
  if head[DUE] ~= second[DUE] then return head[DUE] < second[DUE] end
  return head[SEQ] < second[SEQ]
end

local function let(id, state, place)
  local head = change(id)
  if head[STATE] ~= state then
    head[STATE] = state
    if head[PLACE] ~= KEEPS_SLOT then head[PLACE] = place end
    if state == WAITING then tell('work') end
  end
end

local function refresh_lane(lane)
  local plan = lane_plan(lane)
  if not plan then return end
  local name = lane .. '\0'
  local max, per = plan[L_MAX], plan[L_PER]
  local started = max and starts(lane, per) or 0
  local slots = count('s' .. name)
  local live = slots > 0 or range('t' .. name, 1)[1] or range('v' .. name, 1)[1]
  if not live and started == 0 then return forget_lane(lane, plan) end
  local leave = max and math.max(max - started, 0) or math.huge
  local ordered = plan[L_CONCURRENCY] == 1
  local before_other = ordered and before_in_order or before_by_rank
  local held = jobs_of(range('H' .. name, -1), {})
  table.sort(held, before_other)
  local chosen, turns, ready = {}, 0, jobs_of(range('y' .. name, -1), {})
  local taken = slots - #ready
  for place, id in ipairs(held) do
    if place <= leave then chosen[id], turns = true, turns + 1 end
  end
  local room = math.min(math.max(plan[L_CONCURRENCY] - taken, 0), leave - turns)
  jobs_of(range((ordered and 't' or 'q') .. name, room + 1), ready)
  table.sort(ready, before_other)
  for place, id in ipairs(ready) do
    if place <= room then chosen[id], turns = true, turns + 1 end
  end
  for _, ids in ipairs({ held, ready }) do
    for _, id in ipairs(ids) do
      if not chosen[id] and head_of(id)[STATE] == WAITING then let(id, PARKED, READY) end
    end
  end
  for id in pairs(chosen) do
    if head_of(id)[STATE] == PARKED then let(id, WAITING, HAS_SLOT) end
  end
  if max then
    -- The rate holds somebody up only if its leave is used up; a slot that gets free is seen without it.
    local held_up = turns == leave and turns < #held + #ready
    local reserved = held_up and turns or max - 1 -- an empty lane goes with its last start
    look_again(lane, plan, (held_up or not live) and opens_at(lane, max, per, started, reserved) or false)
  end
end

local function refresh()
  local lanes = touched
  touched = {}
  for lane in pairs(lanes) do refresh_lane(lane) end
end
