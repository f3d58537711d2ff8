-- making: a job comes into being, with what it brings: the limits of its lane, whom it waits for, and the key it takes.

local function take_key(digest, text, task, id, since, completed_until, failed_until, follows)
  local former = get('k', digest)
  if former then forget_key(digest, former) end
  add('K' .. instant(since) .. digest)
  set('k', digest, { text, task, id, former and former[K_GENERATION] + 1 or 1, since, completed_until, failed_until, follows,
    false, false, false, false })
end

-- Makes a job of a newcomer. `given` is due, since, follows, calls, and of a continuation chain, root_queue and index.
-- Returns the limits that its lane had until now, if it changed them.
local function make(job, given)
  local id, plan, lane, blockers = job[N_ID], job[N_PLAN], job[N_LANE], job[N_BLOCKERS]
  local head = new_head()
  head[PRIORITY], head[DUE], head[FOLLOWS] = job[N_PRIORITY], given.due, given.follows or false
  head[EXPIRES] = job[N_EXPIRES] and NOW + job[N_EXPIRES] or false
  head[CHAIN], head[ROOT_QUEUE], head[PLACE_IN_CHAIN] = given.chain or false, given.root_queue or false, given.index or 0
  head[BLOCKERS] = #blockers
  head[LANE] = lane and lane[1] or false
  head[DIGEST] = plan and plan[P_DIGEST] or false
  if head[FOLLOWS] or #blockers > 0 then
    head[STATE] = BLOCKED
  elseif head[DUE] > NOW then
    head[STATE] = DELAYED
  else
    head[STATE] = lane and PARKED or WAITING
  end
  head[PLACE] = lane and (head[STATE] == PARKED and READY or NOT_READY)
  local card = { job[N_TASK], job[N_PAYLOAD], job[N_OPTIONS], false, false, false, lane and lane[6], false, 0, given.calls or {},
    job[N_MAX_CRASHES], given.since, job[N_RUNS_ANYWAY], false, false, NOW, job[N_GRAVE] }
  if plan then
    card[KEY], card[PLAN], card[FINGERPRINT], card[ITEMS] = plan[P_TEXT], plan[P_RULES], plan[P_FINGERPRINT], plan[P_ITEMS]
    card[SIZE] = plan[P_SIZE] > 0 and plan[P_SIZE]
  end
  create(id, head, card)
  tell('work')
  if plan then
    take_key(plan[P_DIGEST], plan[P_TEXT], job[N_TASK], id, given.since, forget_at(plan, 3, given.since),
      forget_at(plan, 4, given.since), head[FOLLOWS])
  end
  local former
  if lane then
    former = put_lane(lane[1], lane[2], lane[3], lane[4], lane[5])
    touch(lane[1])
  end
  if #blockers > 0 then
    local chains = {}
    for place, chain in ipairs(blockers) do chains[place] = { chain[1], chain[2] } end
    set('b', id, chains)
    wait_for(id, blockers)
  end
  return former
end

-- The next job of a chain, unless there is one.
function take.go_on(job, chain, root_queue, index)
  local found = head_of(job[N_ID])
  if not found then
    make(job, { due = NOW + job[N_DELAY], since = NOW, chain = chain, root_queue = root_queue, index = index })
  elseif found[CHAIN] ~= chain then
    post(root_queue, 'over', chain, COMPLETED, false, false, NOW)
  end
end

-- A key's record beside the job that holds it, as `judge` needs it; nothing if there is no record.
local function holder_of(digest)
  local record = get('k', digest)
  if not record then return end
  local id = record[K_HOLDER]
  local head, card = job_of(id)
  local holder = { id = id, since = record[K_SINCE], completed_until = record[K_COMPLETED], failed_until = record[K_FAILED],
    follows = record[K_FOLLOWS] }
  if head then
    holder.state = head[NEXT] and (head[OVER] or RUNNING) or head[STATE]
    holder.accepted, holder.due, holder.attempt, holder.priority = card[ACCEPTED], head[DUE], head[ATTEMPT], head[PRIORITY]
    holder.options, holder.expires, holder.lane = card[OPTIONS], head[EXPIRES], head[LANE]
    holder.fingerprint = card[FINGERPRINT] or record[K_FINGERPRINT] or ''
    holder.items, holder.size, holder.calls, holder.gone = card[ITEMS], card[SIZE] or #card[PAYLOAD], card[CALLS], false
  else
    holder.state, holder.gone = record[K_ENDED] or REVOKED, true
    holder.accepted, holder.due, holder.attempt, holder.priority = holder.since, holder.since, 1, 0
    holder.options, holder.expires, holder.lane = false, false, false
    holder.fingerprint, holder.items, holder.size, holder.calls = record[K_FINGERPRINT] or '', 0, 0, {}
  end
  return holder
end
