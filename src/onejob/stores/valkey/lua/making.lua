-- making: a job comes into being, with what it brings: the limits of its lane, whom it waits for, and the key it takes.

local function take_key(digest, named, id, since, completed_until, failed_until, follows)
  local former = key_of(digest)
  if former then forget_key(digest, former) end
  local text, task = unpack_bytes(NAMED, named)
  local record = { text, task, id, former and former[K_GENERATION] + 1 or 1, since, completed_until, failed_until, follows, false,
    false, false, false }
  if not is_shown(digest, record, head_of(id)) then add_later('K' .. instant(since) .. digest) end
  save_key(digest, record)
end

-- Makes a job of a newcomer; of a continuation, `chain`, `root_queue` and `index` say where it stands. `calls` are those that
-- changed whom it comes after. Returns the limits that its lane had until now, if it changed them.
local function make(job, due, since, follows, calls, chain, root_queue, index)
  local id, plan, lane, blockers = job[N_ID], job[N_PLAN], job[N_LANE], job[N_BLOCKERS] or NOBODY
  local state = lane and PARKED or WAITING
  if follows or blockers[1] then
    state = BLOCKED
  elseif due > NOW then
    state = DELAYED
  end
  local head = new_head(state, job[N_PRIORITY], due)
  if plan then head[DIGEST] = plan[P_DIGEST] end
  if follows then
    note_followed(follows)
    head[FOLLOWS] = follows
  end
  if job[N_EXPIRES] then head[EXPIRES] = NOW + job[N_EXPIRES] end
  if chain then head[CHAIN], head[ROOT_QUEUE], head[PLACE_IN_CHAIN] = chain, root_queue, index end
  if lane then head[LANE], head[PLACE] = lane[1], state == PARKED and READY or NOT_READY end
  if since ~= NOW then head[SINCE] = since end
  if calls ~= '' then
    head[CHANGED] = 1
    save_calls(id, calls)
  end
  head[BLOCKERS] = #blockers
  tell('work')
  create(id, head, job[N_CARD])
  if plan then
    local rules = plan[P_RULES]
    take_key(plan[P_DIGEST], plan[P_NAMED], id, since, forget_at(rules, 3, since), forget_at(rules, 4, since), follows or false)
  end
  local former
  if lane then
    former = put_lane(lane[1], lane[2], lane[3], lane[4], lane[5])
    touch(lane[1])
  end
  if blockers[1] then
    local chains = {}
    for place, waited in ipairs(blockers) do chains[place] = { waited[1], waited[2] } end
    set('b', id, chains)
    wait_for(id, blockers)
  end
  return former
end

-- The next job of a chain, unless there is one.
function take.go_on(job, chain, root_queue, index)
  local found = head_of(job[N_ID])
  if not found then
    make(job, NOW + job[N_DELAY], NOW, false, '', chain, root_queue, index)
  elseif found[CHAIN] ~= chain then
    post(root_queue, 'over', chain, COMPLETED, false, false, NOW)
  else
    take.say_end(job[N_ID])
  end
end

-- A key's record beside the job that holds it, as `judge` needs it; nothing if there is no record. What it has collected is
-- read only if it is `wanted`: most are judged without.
local function holder_of(digest, wanted)
  local record = key_of(digest)
  if not record then return end
  local id = record[K_HOLDER]
  local head = head_of(id)
  if not head then
    return { id = id, state = record[K_ENDED] or REVOKED, gone = true, since = record[K_SINCE], completed_until = record[K_COMPLETED],
      failed_until = record[K_FAILED], follows = record[K_FOLLOWS], accepted = record[K_SINCE], due = record[K_SINCE], attempt = 1,
      priority = 0, options = false, expires = false, lane = false, fingerprint = record[K_FINGERPRINT] or '', items = 0, size = 0,
      calls = '' }
  end
  local text, card = card_text_of(id), wanted and card_of(id)
  local _, options_at, key_at, fingerprint_at, more_at = card_parts(text)
  return { id = id, state = head[NEXT] and (head[OVER] or RUNNING) or head[STATE], gone = false, since = record[K_SINCE],
    completed_until = record[K_COMPLETED], failed_until = record[K_FAILED], follows = record[K_FOLLOWS], accepted = head[ACCEPTED],
    due = head[DUE], attempt = head[ATTEMPT], priority = head[PRIORITY],
    options = key_at > options_at and sub(text, options_at, key_at - 1), expires = head[EXPIRES], lane = head[LANE],
    fingerprint = more_at > fingerprint_at and sub(text, fingerprint_at, more_at - 1) or record[K_FINGERPRINT] or '',
    items = card and card[ITEMS], size = card and (card[SIZE] or #card[PAYLOAD]), calls = calls_of(id, head) }
end
