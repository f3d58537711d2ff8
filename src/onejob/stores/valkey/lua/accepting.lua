-- accepting: one newcomer is judged by the holder of its key, and what was decided is written.

local revoke_last, accept
do
  local function change_holder(job, id, wanted)
    local plan, head = job[N_PLAN], change(id)
    if wanted.append then
      local card = card_of(id)
      card[SIZE] = (card[SIZE] or #card[PAYLOAD]) + 1 + payload_size(job)
      card[PAYLOAD], card[ITEMS] = card[PAYLOAD] .. '\n' .. payload_of(job), card[ITEMS] + plan[P_ITEMS]
      save_card(id)
    else
      local text = with_payload(card_text_of(id), job[N_CARD], plan[P_FINGERPRINT], plan[P_ITEMS], plan[P_SIZE])
      cards[id], card_texts[id] = nil, text
      write('c' .. id, text)
    end
    head[DUE], head[UPDATED], head[CHANGED] = wanted.due, NOW, 1
    save_calls(id, wanted.calls)
    place_queued(id)
    tell('work')
  end

  -- Ends a chain by its last job: one that is queued ends; one that runs is flagged.
  function revoke_last(id, reason)
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
    local id = holder.id
    if decision.expire_holder then end_queued(id, EXPIRED) end
    if decision.end_holder then end_queued(id, 'superseded by job ' .. readable(job[N_ID])) end
    if decision.hurry_holder then
      local head = change(id)
      if (head[STATE] == BLOCKED or head[STATE] == DELAYED) and head[DUE] > NOW then head[DUE] = NOW end
      place_queued(id)
    end
    if decision.change then change_holder(job, id, decision.change) end
    if decision.follows == id then
      -- A holder that was made again without its key must know at its end who waits behind it.
      local head = head_of(id)
      if head and not head[DIGEST] then know_key(id, job[N_PLAN][P_DIGEST]) end
    end
  end

  -- What a newcomer is answered; of most duplicates there is less to say: who is kept, or how he was changed.
  local function answer_of(decision, former)
    if decision.change or decision.outcome == 'kept' then
      return { decision.holder, decision.state, decision.age,
        (decision.payload_differs and 2 or 0) + (decision.options_differ and 1 or 0), CHANGES[decision.outcome] }
    end
    local lane = former and { former[L_CONCURRENCY], former[L_MAX], former[L_PER], former[L_HOLD] } or false
    return { decision.id, decision.outcome, decision.verdict, decision.holder or false, decision.state or false, decision.age or 0,
      decision.payload_differs and 1 or 0, decision.options_differ and 1 or 0, lane }
  end

  -- Accepts a newcomer; returns its answer, whose id it was given, and the outcome. The answer to most is 1: it was created.
  function accept(job)
    local plan, id, former = job[N_PLAN], job[N_ID], nil
    local holder = plan and holder_of(plan[P_DIGEST], plan[P_RULES][R_MAX_ITEMS] > 0)
    if not holder then
      if head_of(id) then return 1, id, 'created' end
      former = make(job, made_due(job), NOW, false, '')
      return former and answer_of({ id = id, outcome = 'created', verdict = RUN }, former) or 1, id, 'created'
    end
    local decision = judge(job, holder)
    if decision.replayed then return answer_of(decision), decision.id, decision.outcome end
    if head_of(id) then return 1, id, 'created' end
    touch_holder(job, holder, decision)
    if decision.creates then
      former = make(job, decision.due, decision.since, decision.follows, decision.calls)
      if decision.flag_holder then take.revoke_from(holder.id, 'superseded by job ' .. readable(id)) end
    end
    return answer_of(decision, former), decision.id, decision.outcome
  end
end

-- Reads in few calls what accepting these newcomers needs: whether they are there already, and who holds their keys.
local function look_for(jobs)
  local ids, digests, holders = {}, {}, {}
  for place = 1, #jobs do
    local job = jobs[place]
    ids[place] = job[N_ID]
    if job[N_PLAN] then digests[#digests + 1] = job[N_PLAN][P_DIGEST] end
  end
  fetch('k', digests, key_texts)
  for place = 1, #digests do
    local record = key_texts[digests[place]]
    if record then holders[#holders + 1] = select(3, unpack_bytes(HOLDER_OF_KEY, record)) end
  end
  fetch('c', holders, card_texts)
  for place = 1, #holders do ids[#ids + 1] = holders[place] end
  fetch('j', ids, head_texts)
end
