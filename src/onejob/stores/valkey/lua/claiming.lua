-- claim: start waiting jobs for one worker, within the limits of their queue. Which job of a lane may start now has been
-- settled before: only those wait.

local AT_A_TIME, GRACE = /* portion */, /* grace */
-- So many cards are read before one looks how big they were.
local CARDS = 10

local queue_limits, claim
do
  local function first_time(kind)
    local member = range(kind, 1)[1]
    return member and read_number(member, 2)
  end

  -- The members of a kind whose time has come, and when the first one's comes; NOW: one has to look. Most often there are none.
  local function ripe(kind)
    local at = first_time(kind)
    if at and at <= NOW then return until_time(kind, NOW, AT_A_TIME), NOW end
    return NOBODY, at
  end

  -- Lets in what has become due. Returns false if that was too much for once, and a claim might pass an older job of a lane; and
  -- when time brings more, for jobs, those of lanes, and lanes.
  local function promote()
    local none_delayed = not are_any(DELAYED)
    local delayed, next_delayed = NOBODY, nil
    if not none_delayed then delayed, next_delayed = ripe('D') end
    for _, member in ipairs(delayed) do
      local id = string.sub(member, -16)
      change(id)[STATE] = WAITING
    end
    local laned, next_laned = NOBODY, nil
    if not none_delayed then laned, next_laned = ripe('E') end
    for _, member in ipairs(laned) do
      local id = string.sub(member, -16)
      local head = change(id)
      head[STATE] = PARKED
      if head[PLACE] == NOT_READY then head[PLACE] = READY end
      touch(head[LANE])
    end
    local opening, next_opening = ripe('L')
    for _, member in ipairs(opening) do touch(string.sub(member, 8)) end
    -- A lane that a clock since set back has closed for too long is looked at now.
    local latest = next_opening and last('L', 1)[1]
    if latest then
      local plan = lane_plan(string.sub(latest, 8))
      if plan and plan[L_PER] and plan[L_OPENS] - plan[L_PER] > NOW then touch(string.sub(latest, 8)) end
    end
    refresh()
    return #laned < AT_A_TIME, next_delayed, next_laned, next_opening
  end

  local function start(id, worker, lease, limits)
    local head = change(id)
    head[STATE], head[ATTEMPT], head[LEASE], head[WORKER], head[STARTED] = RUNNING, head[ATTEMPT] + 1, lease, worker, NOW
    if limits[Q_MAX] then record_start('', id, lease) end
    local lane = head[LANE]
    if lane then
      local plan = lane_plan(lane)
      if plan and plan[L_MAX] then record_start(lane, id, lease) end
      if plan and (plan[L_MAX] or plan[L_CONCURRENCY] > TURNS) then touch(lane) end
    end
  end

  -- A job as clients read it: its records as they are written, and of few jobs their chain and their lane.
  local function given(id)
    local head = head_of(id)
    if head[HAS_MORE] or head[LANE] then return { id, head_texts[id], card_texts[id], head[CHAIN], head[LANE] } end
    return { id, head_texts[id], card_texts[id] }
  end

  function queue_limits() return limits_text and unpack_record(limits_text) or { false, false, false, false } end

  local function earlier(one, other) return one and math.min(one, other or one) or other end

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

  -- Reads the limits of the lanes of these jobs at once; if the first one has none, it is taken for one of many.
  local function read_plans_of(ids)
    local lanes = {}
    local _, one = parts_at_end(head_texts[ids[1]])
    if one == '' then return end
    for place = 1, #ids do
      local _, lane = parts_at_end(head_texts[ids[place]])
      if lane and lane ~= '' then lanes[#lanes + 1] = lane end
    end
    read_lane_plans(lanes)
  end

  -- Starts up to `limit` jobs, and `stock` more as long as none has a lane, was once lost with its worker, or must never be. Returns
  -- them, how long until time brings more, and whether one must ask again first.
  function claim(worker, limit, lease, alive_until, stock)
    local more_overdue = expire_overdue(AT_A_TIME) == AT_A_TIME
    refresh()
    local till = tonumber(call('HGET', DATA, 'w' .. worker) or nil)
    if not till or alive_until and alive_until > till then -- it may have beaten since it last claimed here
      call('HSET', DATA, 'w' .. worker, alive_until or NOW + GRACE)
    end
    local jobs, soonest = {}, more_overdue and NOW or nil
    local limits = queue_limits()
    if limits[Q_PAUSED] then return { jobs, more_overdue and 0 or false, 0 } end
    local complete, next_delayed, next_laned, next_opening = promote()
    local more = not complete
    if complete then
      local room, opens = room_of(limits)
      local slots = math.min(limit, room)
      local wanted = room == math.huge and limit + stock or slots
      if wanted > 0 then
        local members, ids, started = range('R', wanted), {}, number(NOW + 1)
        local held, running = pack_bytes('>Bc0Bc0', #lease, lease, #worker, worker), 'W' .. worker .. '\0'
        for place = 1, #members do ids[place] = sub(members[place], -16) end
        fetch('j', ids, head_texts)
        local special, bytes = false, 0
        if ids[1] then read_plans_of(ids) end
        for place = 1, #ids do
          local id = ids[place]
          if place % CARDS == 1 then
            if bytes > MOST_BYTES then
              more = true
              break
            end
            fetch('c', ids, card_texts, place, place + CARDS - 1)
          end
          bytes = bytes + #card_texts[id]
          special = special or wanted > slots and not fits_stock(id)
          if special and #jobs >= slots then break end
          local text, lane = start_plain(id, members[place], started, held, running)
          if text then
            if limits[Q_MAX] then record_start('', id, lease) end
            jobs[#jobs + 1] = lane and { id, text, card_texts[id], false, lane } or { id, text, card_texts[id] }
          else
            local head = head_of(id)
            if not (head[EXPIRES] and head[EXPIRES] <= NOW) then
              start(id, worker, lease, limits)
              jobs[#jobs + 1] = id
            end
          end
        end
        refresh()
        gather()
        for place = 1, #jobs do
          if type(jobs[place]) == 'string' then jobs[place] = given(jobs[place]) end
        end
        if #jobs == room then opens = select(2, room_of(limits)) end
      end
      soonest = earlier(opens, soonest)
    end
    if next_delayed == NOW then next_delayed = first_time('D') end
    if next_laned == NOW then next_laned = first_time('E') end
    if next_opening or lanes_open then next_opening = first_time('L') end
    soonest = earlier(next_delayed, earlier(next_laned, earlier(next_opening, soonest)))
    return { jobs, soonest and math.max(soonest - NOW, 0) or false, more and 1 or 0 }
  end
end
