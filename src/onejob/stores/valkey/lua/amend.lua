-- amend: one step of what an operator asks of a chain. A chain may lie in several queues; whoever asks goes from one to the
-- next, and each step is safe by itself.
-- in: a step's name and its arguments · out: what it says
--! works

local step = {}

-- One job, by itself.
function step.look_at(id)
  local head, card = head_of(id), card_of(id)
  if not head then return false end
  return { id, head[STATE], head[CHAIN] or id, head[ROOT_QUEUE] or QUEUE, head[NEXT], head[NEXT_QUEUE], head[BLOCKERS],
    card[RUNS_ANYWAY] and 1 or 0, card[ORIGIN], card[ORIGIN_QUEUE], card[OPTIONS] }
end

-- The last job of a chain, as far as it is in this queue and one call goes.
function step.look(id)
  local head, hops = head_of(id), 0
  while head and head[NEXT] and head[NEXT_QUEUE] == QUEUE and hops < 10 * AT_ONCE and head_of(head[NEXT]) do
    id, hops = head[NEXT], hops + 1
    head = head_of(id)
  end
  return step.look_at(id)
end

-- What a chain's first job knows of its key.
function step.key(root)
  local head, card = head_of(root), card_of(root)
  if not head then return false end
  return { head[DIGEST], card[PLAN] }
end

-- Whether somebody waits for a chain, or has yet to read what it returned.
function step.awaited(root) return range('A' .. root, 1)[1] and 1 or 0 end

-- Revokes the last job of a chain.
function step.revoke(id, reason)
  local head = head_of(id)
  if not head or head[NEXT] then return 'moved' end
  if head[ENDED] then return 'finished' end
  return revoke_last(id, reason) == REVOKED and 'revoked' or 'flagged'
end

-- Ends the last job of a chain, if it is queued.
function step.finish(id, reason)
  local head = head_of(id)
  if not head or head[NEXT] then return 'moved' end
  if head[STATE] == RUNNING then return 'running' end
  end_queued(id, reason)
  return 'done'
end

-- Ends a chain whose next job is lost, because its queue fell back when another node took over. Who asks has looked for it.
function step.give_up(id)
  local head = head_of(id)
  if not head or not head[NEXT] then return 'moved' end
  post(head[ROOT_QUEUE] or QUEUE, 'over', head[CHAIN] or id, REVOKED, false, 'its next job is gone', NOW)
  return 'done'
end

-- Drops a chain that is over; it may have been retried since somebody looked.
function step.drop(root)
  local head = head_of(root)
  if head and not is_over(head) then return 'moved' end
  take.drop(root)
  return 'done'
end

-- Lets a chain of this queue run again from its last job, with its key if it may have it.
function step.revive(root, id, queue, force, rules, chains, letter)
  local head = change(root)
  if not head then return 'moved' end
  local state = head[NEXT] and head[OVER] or head[STATE]
  if state ~= FAILED and state ~= REVOKED then
    return 'moved'
  end
  local card, digest, since = card_of(root), head[DIGEST], head[SINCE] or head[ACCEPTED]
  local holder = digest and rules and holder_of(digest)
  local with_key = may_revive(root, rules, holder)
  if not with_key and not force then
    return 'kept'
  end
  if not chains then
    return 'stranded'
  end
  local follows = with_key and holder and holder.follows or false
  if head[NEXT] then head[OVER], head[OVER_AT] = false, false end
  if not with_key then
    local record = digest and key_of(digest)
    if record and record[K_HOLDER] == root then add('K' .. instant(record[K_SINCE]) .. digest) end
    know_key(root, false)
    card[KEY], card[PLAN] = false, false
    save_card(root)
  elseif rules then
    take_key(digest, named(card[KEY], card[TASK]), root, since, forget_at(rules, 3, since), forget_at(rules, 4, since), follows)
  end
  post(queue, 'revive', id, follows, chains, QUEUE, letter)
  return 'retried'
end

-- Makes an original again that is gone: the newcomer, its last error, how many items it has, and its dead letter.
function step.exhume(text, error, items, letter)
  local job = read_newcomer(text)
  if head_of(job[N_ID]) then return 'moved' end
  make(job, NOW, NOW, false, '')
  card_of(job[N_ID])[ITEMS] = items
  save_card(job[N_ID])
  if error then set_error(job[N_ID], error) end
  post(letter[2], 'unbury', letter[1])
  return 'retried'
end

local asked = unpack_record(ARGV[3])
local answer = step[asked[1]](unpack(asked, 2))
refresh()
return reply(answer)
