-- plain: the short ways of jobs that have nothing beside what every head has, and at most a key. Their heads are written as bytes,
-- without having been read: a table of Lua's costs more than all the rest. Each does, to the byte, what the long way does, and
-- returns nothing where that has to be taken.

-- How many bytes a head has without lease, worker and key; numbers of attempts, or of losses.
local LONE = 69
local NEVER, ONCE = '\0\0\0\0', '\0\0\0\1'

local make_plain, keep_plain, complete_plain, start_plain, fits_stock
do
  -- What is the same for many jobs of a call.
  local of_priority, of_due, made_rest, made_member, made_state, since_now, ended_now, over_now, holders, key_rests
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

  local function take_vacant_key(plan, card, id)
    local digest, text, rules, _, size = plan[P_DIGEST], plan[P_TEXT], plan[P_RULES], unpack_bytes('>I4I2', card)
    local rest = key_rests[rules]
    if not rest then
      rest = pack_bytes('>I4dddBBddB', 1, NOW, forget_at(rules, 3, NOW) or -1, forget_at(rules, 4, NOW) or -1, 0, 0, -1, -1, 0)
      key_rests[rules], since_now = rest, 'K' .. instant(NOW)
    end
    text = pack_bytes('>I2c0I2c0c16', #text, text, size, sub(card, 18, 17 + size), id) .. rest
    keys[digest], key_texts[digest] = nil, text
    write('k' .. digest, text)
    add_later(since_now .. digest)
  end

  -- As `make`, for a newcomer that brings nothing else, and whose key nobody holds.
  function make_plain(job, due)
    local id, priority, card, plan = job[N_ID], job[N_PRIORITY], job[N_CARD], job[N_PLAN]
    if priority ~= of_priority or due ~= of_due then
      of_priority, of_due, made_state = priority, due, due > NOW and DELAYED or WAITING
      made_rest = pack_bytes('>i4I6I4I4I4I4I6I6I6I6BI4I4BB', priority, due, 0, 0, 0, 0, NOW, NOW, 0, 0, 0, 0, 0, 0, 0)
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

  -- As `start`, for the job of a member that is waiting: `started`, `held` and `running` are how its start, its lease and worker,
  -- and its new member are written. Returns its new head.
  function start_plain(id, member, started, held, running)
    local text = head_texts[id]
    local key = heads[id] == nil and key_at_end(text)
    if not key then return end
    local attempt = sub(text, 18, 21)
    attempt = attempt == NEVER and ONCE or pack_bytes('>I4', unpack_bytes('>I4', attempt) + 1)
    text = RUNNING .. sub(text, 2, 17) .. attempt .. sub(text, 22, 45) .. started .. sub(text, 52, 66) .. held .. key
    head_texts[id], unwritten[id] = text, true
    write('j' .. id, text)
    remove_later(member)
    add_later(running .. id)
    count_state(WAITING, -1)
    count_state(RUNNING, 1)
    return text
  end
end
