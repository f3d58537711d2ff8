-- plain: the short ways of jobs that have nothing beside what every head has, and at most a key. Their heads are written as bytes,
-- without having been read: a table of Lua's costs more than all the rest. Each does, to the byte, what the long way does, and
-- returns nothing where that has to be taken.

-- How many bytes a head has without lease, worker and key; numbers of attempts, or of losses.
local LONE = 69
local NEVER, ONCE = '\0\0\0\0', '\0\0\0\1'

local accept_alone, make_plain, keep_plain, complete_plain, start_plain, claim_alone, fits_stock
do
  -- What is the same for many jobs of a call.
  local of_priority, of_due, made_rest, made_member, made_state, since_now, ended_now, over_now, holders, key_rests
  -- The rules that came last, in some call before.
  local rules_text, last_rules
  on_begin(function()
    of_priority, of_due, since_now, ended_now, over_now = false, false, false, false, false
    holders, key_rests = emptied(holders), emptied(key_rests)
  end)

  -- The key at the end of a head, with its length; nothing if that is not its end.
  local function key_at_end(text)
    if #text == LONE then return '\0' end
    local worker_at = 68 + string.byte(text, 67)
    local key_at = worker_at + 1 + string.byte(text, worker_at)
    return key_at + string.byte(text, key_at) == #text and sub(text, key_at)
  end

  -- What a new head has behind its number, but for its key.
  local function rest_of_new(priority, due)
    return pack_bytes('>i4I6I4I4I4I4I6I6I6I6BI4I4BB', priority, due, 0, 0, 0, 0, NOW, NOW, 0, 0, 0, 0, 0, 0, 0)
  end

  -- The record of a key that nobody held, and what it has behind its holder.
  local function rest_of_key(rules)
    return pack_bytes('>I4dddBBddB', 1, NOW, forget_at(rules, 3, NOW) or -1, forget_at(rules, 4, NOW) or -1, 0, 0, -1, -1, 0)
  end
  local function record_of_key(text, card, id, rest)
    local size = unpack_bytes('>I2', card, 5)
    return pack_bytes('>I2c0I2c0c16', #text, text, size, sub(card, 18, 17 + size), id) .. rest
  end

  local function take_vacant_key(plan, card, id)
    local digest, rules = plan[P_DIGEST], plan[P_RULES]
    local rest = key_rests[rules]
    if not rest then
      rest = rest_of_key(rules)
      key_rests[rules], since_now = rest, 'K' .. instant(NOW)
    end
    local text = record_of_key(plan[P_TEXT], card, id, rest)
    keys[digest], key_texts[digest] = nil, text
    write('k' .. digest, text)
    add_later(since_now .. digest)
  end

  -- As `enqueue` altogether, for one newcomer that brings nothing else, is wanted now, and whose key nobody holds: most come so. It
  -- leaves nothing in any outbox, and does not look into it.
  function accept_alone(text)
    local size, at = unpack_bytes('>I4', text)
    local packed, id, priority, delay, card_size, more_size, rule = size > 0 and sub(text, at, at + size - 1)
    id, priority, delay, card_size, more_size, rule, at = unpack_bytes(NEWCOMER, text, at + size)
    local rules, digest, key, _ = false, '', nil, nil
    if delay > 0 or more_size > 0 then return end
    if rule > 0 then
      if packed ~= rules_text then rules_text, last_rules = packed, unpack_record(packed) end
      rules = last_rules[rule]
      if rules[R_WAIT] > 0 then return end
      digest, key, _, _, _, at = unpack_bytes(PLANNED, text, at)
    end
    if at + card_size ~= #text + 1 then return end
    local head_field = 'j' .. id
    local found = call('HMGET', DATA, 'm', head_field, 'mseq', 'mn' .. WAITING, rules and 'k' .. digest or 'm')
    if found[1] ~= FORMAT or found[2] or rules and found[5] then return end
    local waiting, place, card = tonumber(found[4] or 0), (found[3] or 0) + 1, sub(text, at)
    local place_text = number(place)
    local head = WAITING .. place_text .. rest_of_new(priority, NOW) .. pack_bytes('>Bc0', #digest, digest)
    local member = pack_bytes('>c1I4', 'R', 2147483647 - priority) .. instant(NOW) .. place_text .. id
    if rules then
      call('ZADD', INDEX, 0, 'O' .. place_text .. id, 0, member, 0, 'K' .. instant(NOW) .. digest)
      call('HSET', DATA, head_field, head, 'c' .. id, card, 'mn' .. WAITING, waiting + 1, 'mseq', place,
        'k' .. digest, record_of_key(key, card, id, rest_of_key(rules)))
    else
      call('ZADD', INDEX, 0, 'O' .. place_text .. id, 0, member)
      call('HSET', DATA, head_field, head, 'c' .. id, card, 'mn' .. WAITING, waiting + 1, 'mseq', place)
    end
    return { { 1 }, WORK + tell_now(waiting) }
  end

  -- As `make`, for a newcomer that brings nothing else, and whose key nobody holds.
  function make_plain(job, due)
    local id, priority, card, plan = job[N_ID], job[N_PRIORITY], job[N_CARD], job[N_PLAN]
    if priority ~= of_priority or due ~= of_due then
      of_priority, of_due, made_state = priority, due, due > NOW and DELAYED or WAITING
      made_rest = rest_of_new(priority, due)
      made_member = made_state == DELAYED and 'D' .. instant(due) or pack_bytes('>c1I4', 'R', 2147483647 - priority) .. instant(due)
    end
    tell('work')
    local place = number(next_number())
    local text = made_state .. place .. made_rest .. (plan and pack_bytes('>Bc0', #plan[P_DIGEST], plan[P_DIGEST]) or '\0')
    head_texts[id], heads[id], card_texts[id], unwritten[id] = text, nil, card, true
    write('j' .. id, text)
    write('c' .. id, card)
    place = place .. id
    add_later('O' .. place)
    add_later(made_member .. (made_state == DELAYED and id or place))
    count_state(made_state, 1)
    if plan then take_vacant_key(plan, card, id) end
  end

  -- As `judge`, for a newcomer that brings nothing else and whose key is held by a job that has nothing else: its answer, if it is
  -- kept.
  function keep_plain(job)
    local plan, own_id = job[N_PLAN], job[N_ID]
    local digest = plan[P_DIGEST]
    local record = key_texts[digest]
    if not record or keys[digest] ~= nil or brings_more(job) or heads[own_id] or head_texts[own_id] ~= false then return end
    local _, _, id, _, since, completed_until, failed_until, _, _, _, _, known_fingerprint = unpack_bytes(KEY_RECORD, record)
    local text = head_texts[id]
    if not text or heads[id] ~= nil or not key_at_end(text) then return end
    local state, standing, rules, age = sub(text, 1, 1), 0, plan[P_RULES], NOW - since
    if state == RUNNING then
      standing = 1
    elseif not QUEUED[state] then
      standing = state == COMPLETED and 3 or 4
      if (state == COMPLETED and completed_until or failed_until) <= NOW then return end
    end
    if verdict_of(rules, standing, age) ~= KEEP then return end
    local card, fingerprint = card_texts[id], plan[P_FINGERPRINT]
    local _, options_at, key_at, fingerprint_at, more_at = card_parts(card)
    local differs = (more_at > fingerprint_at and sub(card, fingerprint_at, more_at - 1) or known_fingerprint) ~= fingerprint
    if differs and rules[R_STRICT] then return end
    local same = sub(text, 8, 11) == pack_bytes('>i4', job[N_PRIORITY])
      and (key_at > options_at and sub(card, options_at, key_at - 1)) == options_of(job)
    return { id, state, age, (differs and 2 or 0) + (same and 0 or 1) }
  end

  -- The lease under which a job runs, and the beginning of its member, by how its head ends.
  local function holder_by(ending)
    local known = holders[ending]
    if known == nil then
      local aborting, place, blockers, lease, worker, digest, after = unpack_bytes('>BI4I4Bc0Bc0Bc0', ending)
      known = aborting == 0 and place == 0 and blockers == 0 and digest == '' and after > #ending and { lease, 'W' .. worker .. '\0' }
      holders[ending] = known
    end
    return known
  end

  -- As `settle`, for an attempt that simply completed; true if it did.
  function complete_plain(id, lease, result)
    local text = head_texts[id]
    if not text or heads[id] ~= nil or sub(text, 1, 1) ~= RUNNING then return end
    local ending = sub(text, 58)
    local holder = holder_by(ending)
    if not holder or holder[1] ~= lease then return end
    if not ended_now then
      ended_now, over_now = number(NOW + 1), 'Z' .. COMPLETED .. instant(NOW)
      tell('done')
    end
    text = COMPLETED .. sub(text, 2, 51) .. ended_now .. ending
    head_texts[id], unwritten[id] = text, true
    write('j' .. id, text)
    if result then write('r' .. id, result) end
    remove_later(holder[2] .. id)
    add_later(over_now .. id)
    count_state(RUNNING, -1)
    count_state(COMPLETED, 1)
    return true
  end

  -- True for a job that may start before its worker has a slot for it: it has no lane, was never lost, and may be.
  function fits_stock(id)
    local text = head_texts[id]
    if sub(text, 26, 29) ~= NEVER or sub(card_texts[id], 1, 4) == NEVER then return false end
    return key_at_end(text) and true or not head_of(id)[LANE]
  end

  -- The head of a job that starts.
  local function started_text(text, started, held, key)
    local attempt = sub(text, 18, 21)
    attempt = attempt == NEVER and ONCE or pack_bytes('>I4', unpack_bytes('>I4', attempt) + 1)
    return RUNNING .. sub(text, 2, 17) .. attempt .. sub(text, 22, 45) .. started .. sub(text, 52, 66) .. held .. key
  end

  -- As `start`, for the job of a member that is waiting: `started`, `held` and `running` are how its start, its lease and worker,
  -- and its new member are written. Returns its new head.
  function start_plain(id, member, started, held, running)
    local text = head_texts[id]
    local key = heads[id] == nil and key_at_end(text)
    if not key then return end
    text = started_text(text, started, held, key)
    head_texts[id], unwritten[id] = text, true
    write('j' .. id, text)
    remove_later(member)
    add_later(running .. id)
    count_state(WAITING, -1)
    count_state(RUNNING, 1)
    return text
  end

  local function is_there(start, till)
    return call('ZRANGEBYLEX', INDEX, '[' .. start, '(' .. start .. till, 'LIMIT', 0, 1)[1]
  end

  -- As `claim` altogether, where one such job waits, or none, and time brings nothing: so it is when a queue was empty. The worker is
  -- known, there are no limits, and nothing lies in the outbox.
  function claim_alone(worker, limit, lease, alive_until)
    local found = call('HMGET', DATA, 'm', 'mn' .. WAITING, 'mn' .. RUNNING, 'mn' .. DELAYED, 'mlimits', 'w' .. worker)
    local till = tonumber(found[6] or nil)
    if found[1] ~= FORMAT or found[5] or tonumber(found[4] or 0) > 0 or limit < 1 then return end
    if not till or alive_until and alive_until > till then return end
    local members = call('ZRANGEBYLEX', INDEX, '[R', '(R' .. TOP, 'LIMIT', 0, 2)
    if members[2] or is_there('X', instant(NOW + 1)) or is_there('L', TOP) or is_there('o', TOP) then return end
    local jobs, member = {}, members[1]
    if member then
      local id = sub(member, -16)
      local job_field = 'j' .. id
      local records = call('HMGET', DATA, job_field, 'c' .. id)
      local key = key_at_end(records[1])
      if not key then return end
      local held = pack_bytes('>Bc0Bc0', #lease, lease, #worker, worker)
      local text = started_text(records[1], number(NOW + 1), held, key)
      call('ZREM', INDEX, member)
      call('ZADD', INDEX, 0, 'W' .. worker .. '\0' .. id)
      call('HSET', DATA, job_field, text, 'mn' .. WAITING, found[2] - 1, 'mn' .. RUNNING, (found[3] or 0) + 1)
      jobs[1] = { id, text, records[2] }
    end
    return { { jobs, false, 0 }, 0 }
  end
end
