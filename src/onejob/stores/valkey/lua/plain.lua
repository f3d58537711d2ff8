-- plain: the short ways of jobs that have nothing beside what every head has, and at most a key and a lane. Their heads are written as bytes,
-- without having been read: a table of Lua's costs more than all the rest. Each does, to the byte, what the long way does, and
-- returns nothing where that has to be taken.

-- Numbers of attempts, or of losses.
local NEVER, ONCE = '\0\0\0\0', '\0\0\0\1'

local complete_plain, start_plain, claim_alone, fits_stock
do
  -- What is the same for many jobs of a call.
  local ended_now, over_now, holders, holders_with_keys
  on_begin(function()
    ended_now, over_now = false, false
    holders, holders_with_keys = emptied(holders), emptied(holders_with_keys)
  end)

  -- The lease under which a job runs that nothing else goes with but a lane, the beginning of its member, that lane if it has one; and
  -- its key if it has one. By what its head has behind when it ended, which is the same for all without a key.
  local function holder_by(text)
    local ending = sub(text, 58)
    local known = holders[ending]
    if known ~= nil then return known end
    local key_at, lane = parts_at_end(text)
    if not key_at then return end
    local size, among, part = string.byte(text, key_at), holders, ending
    if size > 0 then among, part = holders_with_keys, sub(text, 58, key_at - 1) .. lane end
    known = among[part]
    if known == nil then
      local aborting, followed, _, place, in_chain, blockers, lease, worker = unpack_bytes('>BBBBI4I4Bc0Bc0', part)
      known = aborting == 0 and followed == 0 and in_chain == 0 and blockers == 0 and (lane == '' or place > READY + 1)
        and { lease, 'W' .. worker .. '\0', lane ~= '' and lane }
      among[part] = known
    end
    return known, size > 0 and sub(text, key_at + 1, key_at + size)
  end

  -- As `end_key`, for a job that completed and that nobody follows; true unless that is not all.
  local function end_own_key(id, digest, accepted)
    if keys[digest] ~= nil then return end
    local text = key_texts[digest]
    if text == nil then text = call('HGET', DATA, 'k' .. digest) end
    if not text then return true end
    local _, _, holder, _, since, till, _, follows, ended, _, forget, fingerprint = unpack_bytes(KEY_RECORD, text)
    if follows ~= '' or ended ~= '' or forget >= 0 then return end
    if holder ~= id then return true end
    if till > NOW then
      text = sub(text, 1, #text - 19 - #fingerprint) .. pack_bytes('>BBc1ddB', 0, 1, COMPLETED, NOW, till, #fingerprint) .. fingerprint
      key_texts[digest] = text
      write('k' .. digest, text)
      if till < LATEST then add_later('G' .. instant(till) .. digest) end
      return true
    end
    key_texts[digest] = false
    if accepted ~= instant(since) then remove_later('K' .. instant(since) .. digest) end
    local size = #erased
    erased[size + 1], erased[size + 2] = 'k' .. digest, 'n' .. digest
    return true
  end

  -- As `settle`, for an attempt that simply completed; true if it did.
  function complete_plain(id, lease, result)
    local text = head_texts[id]
    if not text or heads[id] ~= nil or sub(text, 1, 1) ~= RUNNING then return end
    local holder, digest = holder_by(text)
    if not holder or holder[1] ~= lease or digest and not end_own_key(id, digest, sub(text, 40, 45)) then return end
    if not ended_now then
      ended_now, over_now = number(NOW + 1), 'Z' .. COMPLETED .. instant(NOW)
      tell('done')
    end
    local lane = holder[3]
    if lane then
      text = COMPLETED .. sub(text, 2, 51) .. ended_now .. sub(text, 58, 60) .. '\0' .. sub(text, 62)
      remove_later('s' .. lane .. '\0' .. id)
      touch(lane)
    else
      text = COMPLETED .. sub(text, 2, 51) .. ended_now .. sub(text, 58)
    end
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
    local key_at, lane = parts_at_end(text)
    if key_at then return lane == '' end
    return not head_of(id)[LANE]
  end

  -- The head of a job that starts; `ending` begins with its key.
  local function started_text(text, started, held, ending)
    local attempt = sub(text, 18, 21)
    attempt = attempt == NEVER and ONCE or pack_bytes('>I4', unpack_bytes('>I4', attempt) + 1)
    return RUNNING .. sub(text, 2, 17) .. attempt .. sub(text, 22, 45) .. started .. sub(text, 52, 69) .. held .. ending
  end

  -- As `start`, for the job of a member that is waiting: `started`, `held` and `running` are how its start, its lease and worker,
  -- and its new member are written. Returns its new head, and its lane if it has one.
  function start_plain(id, member, started, held, running)
    local text = head_texts[id]
    if heads[id] ~= nil then return end
    local key_at, lane = parts_at_end(text)
    if not key_at then return end
    if lane ~= '' then
      local plan, place = lane_plan(lane), string.byte(text, 61) - 1
      if not plan or plan[L_MAX] or plan[L_CONCURRENCY] > TURNS or place <= READY then return end
      remove_later((place == HAS_SLOT and 'y' or 'H') .. lane .. '\0' .. sub(member, 2))
    end
    text = started_text(text, started, held, sub(text, key_at))
    head_texts[id], unwritten[id] = text, true
    write('j' .. id, text)
    remove_later(member)
    add_later(running .. id)
    count_state(WAITING, -1)
    count_state(RUNNING, 1)
    return text, lane ~= '' and lane or nil
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
      local key_at, lane = parts_at_end(records[1])
      if not key_at or lane ~= '' then return end
      local held = pack_bytes('>Bc0Bc0', #lease, lease, #worker, worker)
      local text = started_text(records[1], number(NOW + 1), held, sub(records[1], key_at))
      call('ZREM', INDEX, member)
      call('ZADD', INDEX, 0, 'W' .. worker .. '\0' .. id)
      call('HSET', DATA, job_field, text, 'mn' .. WAITING, found[2] - 1, 'mn' .. RUNNING, (found[3] or 0) + 1)
      jobs[1] = { id, text, records[2] }
    end
    return { { jobs, false, 0 }, 0 }
  end
end
