-- lanes: whose turn it is. Slots are the jobs that take them, rates the starts they still count. Operations `touch` a lane
-- whenever a job of it becomes ready, starts, ends or goes away, and `refresh` once before they reply: then exactly
-- those whose turn it is are waiting, and a claim need not know of lanes.

-- So many jobs of a lane have their turn at once, however many may run: a claim that takes some lets others follow. And so many starts
-- that no rate counts any more are forgotten at a time.
local TURNS, STARTS_AT_ONCE = 250, 500

local lanes_open -- true: one has been found that will open
local touch, lane_plan, read_lane_plans, put_lane, starts, opens_at, record_start, refresh
do
  local touched, lane_plans
  on_begin(function() touched, lane_plans, lanes_open = emptied(touched), emptied(lane_plans), false end)
  function touch(lane) if lane then touched[lane] = true end end

  function lane_plan(lane)
    local plan = lane_plans[lane]
    if plan == nil then
      plan = get('l', lane)
      lane_plans[lane] = plan
    end
    return plan
  end
  function read_lane_plans(lanes)
    local wanted, texts = {}, {}
    for _, lane in ipairs(lanes) do
      if lane_plans[lane] == nil then wanted[#wanted + 1] = lane end
    end
    fetch('l', wanted, texts)
    for _, lane in ipairs(wanted) do lane_plans[lane] = texts[lane] and unpack_record(texts[lane]) end
  end
  local function set_lane_plan(lane, plan)
    lane_plans[lane] = plan
    set('l', lane, plan)
  end

  -- Lets a lane's limits be these from now on; returns those that were others before.
  function put_lane(lane, concurrency, max, per, hold)
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
    set_lane_plan(lane, { concurrency, max, per, hold, false })
    return former
  end

  -- How many starts a rate still counts; those that it does not are forgotten, some at a time. Starts that a clock since set back has
  -- left in the future count from now.
  function starts(lane, per)
    local start = 'S' .. lane .. '\0'
    local from = start .. instant(NOW - per + 1)
    in_parts('ZREM', INDEX, call('ZRANGEBYLEX', INDEX, '[' .. start, '(' .. from, 'LIMIT', 0, STARTS_AT_ONCE))
    local ahead = call('ZRANGEBYLEX', INDEX, '[' .. start .. instant(NOW + 1), '(' .. start .. TOP, 'LIMIT', 0, STARTS_AT_ONCE)
    for _, member in ipairs(ahead) do
      remove(member)
      add(start .. instant(NOW) .. string.sub(member, #start + 7))
    end
    return call('ZLEXCOUNT', INDEX, '[' .. from, '(' .. start .. TOP)
  end

  -- When one more than `reserved` may start; nothing if time alone does not bring it.
  function opens_at(lane, max, per, started, reserved)
    local nth = started - max + reserved + 1
    if nth > started or nth <= 0 then return end
    local start = 'S' .. lane .. '\0'
    local from = '[' .. start .. instant(NOW - per + 1)
    local member = call('ZRANGEBYLEX', INDEX, from, '(' .. start .. TOP, 'LIMIT', nth - 1, 1)[1]
    return member and read_number(member, #start + 1) + per
  end

  function record_start(lane, id, lease) add('S' .. lane .. '\0' .. instant(NOW) .. id .. lease) end

  do
    -- Members of a lane that begin so. What one lane has yet to write is no other's concern, so that nothing has to be written first.
    local function first(start, limit)
      return call('ZRANGEBYLEX', INDEX, '[' .. start, '(' .. start .. TOP, 'LIMIT', 0, limit)
    end

    local function look_again(lane, plan, opens)
      if plan[L_OPENS] == (opens or false) then return end
      if plan[L_OPENS] then remove('L' .. instant(plan[L_OPENS]) .. lane) end
      plan[L_OPENS] = opens or false
      if opens then
        add('L' .. instant(opens) .. lane)
        lanes_open = true
      end
      set_lane_plan(lane, plan)
    end

    local function forget_lane(lane, plan)
      if plan[L_OPENS] then remove('L' .. instant(plan[L_OPENS]) .. lane) end
      lane_plans[lane] = false
      drop('l', lane)
    end

    -- The jobs behind members of a lane, whose id comes last.
    local function jobs_of(found, jobs)
      for place = 1, #found do jobs[#jobs + 1] = sub(found[place], -16) end
      return jobs
    end
    -- What a job's state is, and its place by acceptance; from its bytes, as long as it has not been read.
    local function state_of(id) return heads[id] == nil and head_texts[id] and sub(head_texts[id], 1, 1) or head_of(id)[STATE] end
    local function seq_of(id)
      if heads[id] == nil and head_texts[id] then return read_number(head_texts[id], 2) end
      return head_of(id)[SEQ]
    end
    local function before_in_order(one, other) return seq_of(one) < seq_of(other) end
    local function before_by_rank(one, other) -- not by their ranks: Lua compares texts as the server's locale does
      local head, second = head_of(one), head_of(other)
      if head[PRIORITY] ~= second[PRIORITY] then return head[PRIORITY] > second[PRIORITY] end
      if head[DUE] ~= second[DUE] then return head[DUE] < second[DUE] end
      return head[SEQ] < second[SEQ]
    end

    -- As `let`, for a ready job that has nothing else but its lane and now has its turn; true if it was one.
    local function let_simply(id, name)
      local text = heads[id] == nil and head_texts[id]
      if not text or sub(text, 1, 1) ~= PARKED or string.byte(text, 61) ~= READY + 1 or not parts_at_end(text) then return end
      local seq = sub(text, 2, 7)
      local rank_id = pack_bytes('>I4', 2147483647 - unpack_bytes('>i4', text, 8)) .. sub(text, 12, 17) .. seq .. id
      text = WAITING .. sub(text, 2, 60) .. string.char(HAS_SLOT + 1) .. sub(text, 62)
      head_texts[id], unwritten[id] = text, true
      write('j' .. id, text)
      remove_later('t' .. name .. seq .. id)
      remove_later('q' .. name .. rank_id)
      add_later('s' .. name .. id)
      add_later('y' .. name .. rank_id)
      add_later('R' .. rank_id)
      count_state(PARKED, -1)
      count_state(WAITING, 1)
      tell('work')
      return true
    end

    local function let(id, state, place)
      local head = change(id)
      if head[STATE] ~= state then
        head[STATE] = state
        if head[PLACE] ~= KEEPS_SLOT then head[PLACE] = place end
        if state == WAITING then tell('work') end
      end
    end

    -- Lets the first of them be waiting, and the others not; returns how many may start. They are in order, unless they are `mixed`.
    local function let_first(ids, most, before_other, mixed, name)
      if mixed and ids[2] then table.sort(ids, before_other) end
      local turns = 0
      for place, id in ipairs(ids) do
        local state = state_of(id)
        if place > most then
          if state == WAITING then let(id, PARKED, READY) end
        else
          turns = place
          if state == PARKED and not let_simply(id, name) then let(id, WAITING, HAS_SLOT) end
        end
      end
      return turns
    end

    -- What there is of a lane, and into `ids` the jobs that matter: those that keep a slot, and those that may have one.
    local function look_at(lane, ids)
      local plan = lane_plan(lane)
      if not plan then return end
      local name = lane .. '\0'
      local concurrency, max, per = plan[L_CONCURRENCY], plan[L_MAX], plan[L_PER]
      local started = max and starts(lane, per) or 0
      local slots = call('ZLEXCOUNT', INDEX, '[s' .. name, '(s' .. name .. TOP)
      local leave = max and math.max(max - started, 0) or math.huge
      local held, ready = {}, {}
      local keeping, turned = 0, 0
      if slots > 0 then -- else nobody can have one
        -- Those who keep a slot and were let in before are among the first of twice as many: no call brings more than that before them.
        jobs_of(first('H' .. name, 2 * TURNS), held)
        keeping = #held < 2 * TURNS and #held or call('ZLEXCOUNT', INDEX, '[H' .. name, '(H' .. name .. TOP)
        jobs_of(first('y' .. name, -1), ready)
        turned = #ready
      end
      local free = math.max(concurrency - (slots - #ready), 0)
      local most = math.min(free, leave - math.min(keeping, leave), TURNS)
      -- One at least, and with a rate one more than may start: whether there is one matters to that, and to whether anything is left here.
      if most > 0 or max or slots == 0 then
        jobs_of(first((concurrency == 1 and 't' or 'q') .. name, max and most + 1 or math.max(most, 1)), ready)
      end
      local live = slots > 0 or ready[1] or first('v' .. name, 1)[1]
      if not live and started == 0 then
        if first('S' .. name, 1)[1] then return look_again(lane, plan, NOW) end -- starts that are yet to be forgotten
        return forget_lane(lane, plan)
      end
      for place = 1, #held do ids[#ids + 1] = held[place] end
      for place = 1, #ready do ids[#ids + 1] = ready[place] end
      return { held, leave, ready, most, live and true or false, started, turned > 0 }
    end

    local function refresh_lane(lane, view)
      local plan, held, leave, ready, most, live, started, mixed = lane_plans[lane], unpack(view)
      local max, per = plan[L_MAX], plan[L_PER]
      local before_other = plan[L_CONCURRENCY] == 1 and before_in_order or before_by_rank
      local number = #held + #ready
      local turns = let_first(held, math.min(leave, TURNS), before_other, true, lane .. '\0')
      turns = turns + let_first(ready, most, before_other, mixed, lane .. '\0')
      if max then
        -- The rate holds somebody up only if its leave is used up; a slot that gets free is seen without it.
        local held_up = turns == leave and turns < number
        local reserved = held_up and turns or max - 1 -- an empty lane goes with its last start
        look_again(lane, plan, (held_up or not live) and opens_at(lane, max, per, started, reserved) or false)
      end
    end

    function refresh()
      if next(touched) == nil then return end
      local lanes, views, ids = {}, {}, {}
      for lane in pairs(touched) do lanes[#lanes + 1] = lane end
      touched = {}
      flush()
      read_lane_plans(lanes)
      for place = 1, #lanes do views[place] = look_at(lanes[place], ids) or false end
      fetch('j', ids, head_texts)
      for place = 1, #lanes do
        if views[place] then refresh_lane(lanes[place], views[place]) end
      end
    end
  end
end
