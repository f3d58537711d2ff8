-- accepting: one newcomer is judged by the holder of its key, and what was decided is written.

local function change_holder(job, id, wanted)
  local plan, card = job[N_PLAN], card_of(id)
  local size = plan[P_SIZE] > 0 and plan[P_SIZE] or #job[N_PAYLOAD]
  if wanted.append then
    card[SIZE] = (card[SIZE] or #card[PAYLOAD]) + 1 + size
    card[PAYLOAD], card[ITEMS] = card[PAYLOAD] .. '\n' .. job[N_PAYLOAD], card[ITEMS] + plan[P_ITEMS]
  else
    card[PAYLOAD], card[FINGERPRINT], card[ITEMS], card[SIZE] = job[N_PAYLOAD], plan[P_FINGERPRINT], plan[P_ITEMS], size
  end
  card[CALLS] = wanted.calls
  save_card(id)
  local head = change(id)
  head[DUE], head[UPDATED] = wanted.due, NOW
  place_queued(id)
  tell('work')
end

-- Ends a chain by its last job: one that is queued ends; one that runs is flagged.
local function revoke_last(id, reason)
  if end_queued(id, reason) then return REVOKED end
  local head = change(id)
  if head[STATE] ~= RUNNING then return end
  head[ABORTING], head[UPDATED] = 1, NOW
  return RUNNING
end

-- Revokes a chain from one of its jobs on, wherever its last job is.
function take.revoke_from(id, reason)
  local head = head_of(id)
  if not head then return end
  if head[NEXT] then return post(head[NEXT_QUEUE], 'revoke_from', head[NEXT], reason) end
  if not head[ENDED] then revoke_last(id, reason) end
end

local function touch_holder(job, holder, decision)
  local id, superseded = holder.id, 'superseded by job ' .. readable(job[N_ID])
  if decision.expire_holder then end_queued(id, EXPIRED) end
  if decision.end_holder then end_queued(id, superseded) end
  if decision.hurry_holder then
    local head = change(id)
    if (head[STATE] == BLOCKED or head[STATE] == DELAYED) and head[DUE] > NOW then head[DUE] = NOW end
    place_queued(id)
  end
  if decision.change then change_holder(job, id, decision.change) end
  if decision.follows == id then
    -- A holder that was made again without its key must know at its end who waits behind it.
    local head = change(id)
    if head then
      if not head[DIGEST] then head[DIGEST] = job[N_PLAN][P_DIGEST] end
    end
  end
end

local function answer_of(decision, former)
  local lane = former and { former[L_CONCURRENCY], former[L_MAX], former[L_PER], former[L_HOLD] } or false
  return { decision.id, decision.outcome, decision.verdict, decision.holder or false, decision.state or false, decision.age or 0,
    decision.payload_differs and 1 or 0, decision.options_differ and 1 or 0, lane }
end

local function accept(job)
  local plan, id = job[N_PLAN], job[N_ID]
  local holder = plan and holder_of(plan[P_DIGEST])
  local decision = judge(job, holder)
  if decision.replayed then return answer_of(decision) end
  if head_of(id) then return answer_of({ id = id, outcome = 'created', verdict = RUN }) end
  if holder then touch_holder(job, holder, decision) end
  local former
  if decision.creates then
    former = make(job, decision)
    if decision.flag_holder then take.revoke_from(holder.id, 'superseded by job ' .. readable(id)) end
  end
  return answer_of(decision, former)
end
