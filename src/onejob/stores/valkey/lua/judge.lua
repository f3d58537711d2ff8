-- judge: what becomes of a newcomer, as `core.judge` decides it: the same arithmetic, held to it by a test that gives both
-- the same cases. It stands here because on this store only a script sees a key's holder and acts on what it saw.

local RUN, KEEP, UPDATE, POSTPONE, COLLECT = 'r', 'k', 'u', 'p', 'c'
local FOLLOW, LATER, CANCEL, RAISE = 'f', 'l', 'x', '!'
local FULL_SIZE = 1048576
-- Calls that changed a job are a text: of each its id, what it did, and whom it changed. The last eight are remembered.
local CALL_SIZE, CALLS_SIZE = 33, 264
local CHANGES = { updated = 'u', postponed = 'p', collected = 'c', u = 'updated', p = 'postponed', c = 'collected' }

local forget_at, made_due, judge, may_revive, verdict_of, is_full, postponed_till, with_call, applied_before
do
  local function column(state, own)
    if QUEUED[state] then return 0 end
    if state == RUNNING then return own and 2 or 1 end
    return state == COMPLETED and 3 or 4
  end

  function verdict_of(rules, standing, age)
    if rules[R_FORCED] then return RUN end
    local place = (not rules[R_WINDOW] or age < rules[R_WINDOW]) and standing or standing + 5
    return sub(rules[R_TABLE], place + 1, place + 1)
  end

  -- Until when a key is remembered after its holder ended like that.
  function forget_at(rules, ended, since)
    if sub(rules[R_TABLE], ended + 1, ended + 1) == RUN then return false end
    return rules[R_WINDOW] and since + rules[R_WINDOW] or 2 ^ 62
  end

  local function is_overdue(holder) return holder.expires and holder.expires <= NOW and QUEUED[holder.state] end

  -- The state in which the holder truly stands; nothing if the key is forgotten.
  local function true_state(holder)
    local state = is_overdue(holder) and REVOKED or holder.state
    if QUEUED[state] or state == RUNNING then return state end
    local till = holder.failed_until
    if state == COMPLETED then till = holder.completed_until end
    if till and till > NOW then return state end
  end

  function is_full(rules, items) return rules[R_MAX_ITEMS] > 0 and rules[R_MAX_ITEMS] <= items end

  function made_due(job)
    local plan, due = job[N_PLAN], NOW + job[N_DELAY]
    if plan and not is_full(plan[P_RULES], plan[P_ITEMS]) then due = math.max(due, NOW + plan[P_RULES][R_WAIT]) end
    return due
  end

  local function made(job, former)
    return { outcome = 'created', verdict = RUN, id = job[N_ID], creates = true, due = made_due(job), since = NOW,
      follows = former and former.follows or false, calls = former and former.calls or '' }
  end

  -- In what a newcomer differs from its key's holder: in its payload, and in its options.
  local function differences(job, holder, verdict)
    local lane = job[N_LANE] and job[N_LANE][1] or false
    return job[N_PLAN][P_FINGERPRINT] ~= holder.fingerprint and verdict ~= COLLECT, not holder.gone
      and not (job[N_PRIORITY] == holder.priority and options_of(job) == holder.options and lane == holder.lane)
  end

  local function answered(decision, job, holder, state, verdict, outcome)
    decision.outcome, decision.verdict, decision.holder, decision.state = outcome, verdict, holder.id, state
    decision.id = outcome == 'created' and job[N_ID] or holder.id
    decision.age = NOW - holder.since
    decision.payload_differs, decision.options_differ = differences(job, holder, verdict)
    return decision
  end

  local function kept(job, holder, state, verdict, outcome)
    local payload_differs, options_differ = differences(job, holder, verdict)
    return { outcome = outcome, verdict = verdict, holder = holder.id, state = state, id = holder.id, age = NOW - holder.since,
      payload_differs = payload_differs, options_differ = options_differ, expire_holder = false }
  end

  local function taken(job, holder, state, verdict)
    local rules, decision = job[N_PLAN][P_RULES], made(job, holder)
    local running = state == RUNNING
    if verdict == FOLLOW or (verdict == CANCEL and running) then decision.follows = holder.id end
    if verdict == LATER then
      local window = rules[R_WINDOW] or 0
      decision.due = math.max(decision.due, holder.since + window)
      decision.since = decision.due
      -- The holder may outlast its window: who would follow it then follows it now.
      if verdict_of(rules, column(state, holder.id == job[N_CALLER]), window) == FOLLOW then decision.follows = holder.id end
    end
    decision.end_holder = verdict == CANCEL and QUEUED[state] or false
    decision.flag_holder = verdict == CANCEL and running
    return answered(decision, job, holder, state, verdict, 'created')
  end

  -- These calls and one more.
  function with_call(calls, id, outcome, holder) return sub(calls .. id .. CHANGES[outcome] .. holder, -CALLS_SIZE) end

  -- What a call did, and to whom, if it is among these.
  function applied_before(calls, id)
    local at = string.find(calls, id, 1, true)
    while at and at % CALL_SIZE ~= 1 do at = string.find(calls, id, at + 1, true) end
    if at then return CHANGES[sub(calls, at + 16, at + 16)], sub(calls, at + 17, at + 32) end
  end

  local function changing(job, holder, state, verdict, outcome, due)
    local calls = with_call(holder.calls, job[N_ID], outcome, holder.id)
    return answered({ change = { due = due, append = verdict == COLLECT, calls = calls } }, job, holder, state, verdict, outcome)
  end

  -- Until when a holder is put off; nothing if that has gone on for as long as it may.
  function postponed_till(rules, accepted, due, attempt)
    local latest = rules[R_MAX_WAIT] and accepted + rules[R_MAX_WAIT]
    if latest and NOW >= latest then return end
    local till = NOW + rules[R_WAIT]
    if latest then till = math.min(till, latest) end
    return attempt > 0 and math.max(till, due) or till
  end

  local function postponed(job, holder, state)
    local due = postponed_till(job[N_PLAN][P_RULES], holder.accepted, holder.due, holder.attempt)
    if not due then return changing(job, holder, state, UPDATE, 'updated', holder.due) end
    return changing(job, holder, state, POSTPONE, 'postponed', due)
  end

  local function collected(job, holder, state)
    local plan = job[N_PLAN]
    local items, limit = holder.items + plan[P_ITEMS], plan[P_RULES][R_MAX_ITEMS]
    if not (items <= limit and holder.size + payload_size(job) < FULL_SIZE) or holder.items >= limit then
      local decision = taken(job, holder, state, FOLLOW)
      decision.hurry_holder = holder.attempt == 0 and holder.due > NOW
      return decision
    end
    local due = holder.due
    if is_full(plan[P_RULES], items) and holder.attempt == 0 then due = math.min(due, NOW) end
    return changing(job, holder, state, COLLECT, 'collected', due)
  end

  local function judged(job, holder, state)
    local plan = job[N_PLAN]
    local verdict = verdict_of(plan[P_RULES], column(state, holder.id == job[N_CALLER]), NOW - holder.since)
    if verdict == KEEP then
      if plan[P_RULES][R_STRICT] and plan[P_FINGERPRINT] ~= holder.fingerprint then
        return kept(job, holder, state, RAISE, 'rejected')
      end
      return kept(job, holder, state, KEEP, 'kept')
    elseif verdict == RAISE then
      return kept(job, holder, state, RAISE, 'rejected')
    elseif verdict == UPDATE then
      return changing(job, holder, state, UPDATE, 'updated', holder.due)
    elseif verdict == POSTPONE then
      return postponed(job, holder, state)
    elseif verdict == COLLECT then
      return collected(job, holder, state)
    end
    return taken(job, holder, state, verdict)
  end

  -- `holder` is a table: id, state, since, completed_until, failed_until, accepted, due, attempt, priority, options, expires,
  -- follows, fingerprint, items, size, calls, gone, lane; or nothing. `replayed` says that a repeated call was recognised.
  function judge(job, holder)
    if not job[N_PLAN] or not holder then return made(job) end
    if holder.id == job[N_ID] then return { id = job[N_ID], outcome = 'created', verdict = RUN, replayed = true } end
    local outcome, changed_job = applied_before(holder.calls, job[N_ID])
    if outcome then return { id = changed_job, outcome = outcome, verdict = RUN, replayed = true } end
    local state = true_state(holder)
    local decision = state and judged(job, holder, state) or made(job, holder)
    decision.expire_holder = is_overdue(holder) or false
    return decision
  end

  -- Whether an operator's retry of an ended job may have its key: vacant, its own, or the cell says run.
  function may_revive(id, rules, holder)
    local state = holder and true_state(holder)
    if not rules or not state or holder.id == id then return true end
    local place = column(state, false)
    if rules[R_WINDOW] and NOW - holder.since >= rules[R_WINDOW] then place = place + 5 end
    return sub(rules[R_TABLE], place + 1, place + 1) == RUN
  end
end
