-- swift: newcomers that bring at most a key and a lane, taken as bytes: a table of Lua's for each costs more than all the rest. Alone, if nobody
-- holds its key; together, up to the first that must be looked at more closely. To the byte it is what the long way does.

local accept_alone, accept_together
do
  -- What a new head has behind its number, but for its key; and a key's record that nobody held, behind its holder.
  local function rest_of_new(priority, due, place)
    return pack_bytes('>i4I6I4I4I4I4I6I6I6I6BBBBI4I4BB', priority, due, 0, 0, 0, 0, NOW, NOW, 0, 0, 0, 0, 0, place + 1, 0, 0, 0, 0)
  end
  local function rest_of_key(rules)
    return pack_bytes('>I4dddBBddB', 1, NOW, forget_at(rules, 3, NOW) or -1, forget_at(rules, 4, NOW) or -1, 0, 0, -1, -1, 0)
  end

  -- The rules that came last, in some call before.
  local rules_text, last_rules

  -- As `enqueue` altogether, for one newcomer that is wanted now, and whose key nobody holds: most come so. It leaves nothing in any
  -- outbox, and does not look into it.
  function accept_alone(text)
    local size, _, at = unpack_bytes(NEWCOMERS, text)
    local packed = size > 0 and sub(text, at, at + size - 1)
    local id, priority, delay, plan_size, card_size, more_size, lane, plan_at = unpack_bytes(NEWCOMER, text, at + size)
    local card_at = plan_at + plan_size
    if delay > 0 or more_size > 0 or lane > 0 or card_at + card_size ~= #text + 1 then return end
    local rules, digest, key_named = false, '', nil
    if plan_size > 0 then
      local rule
      if packed ~= rules_text then rules_text, last_rules = packed, unpack_record(packed)[1] end
      rule, digest, key_named = unpack_bytes(KEY_PLANNED, text, plan_at)
      rules = last_rules[rule]
      if rules[R_WAIT] > 0 then return end
    end
    local head_field = 'j' .. id
    local found = call('HMGET', DATA, 'm', head_field, 'mseq', 'mn' .. WAITING, rules and 'k' .. digest or 'm')
    if found[1] ~= FORMAT or found[2] or rules and found[5] then return end
    local waiting, place, card = tonumber(found[4] or 0), (found[3] or 0) + 1, sub(text, card_at)
    local numbered = number(place) .. id
    local head = WAITING .. number(place) .. rest_of_new(priority, NOW, -1) .. pack_bytes('>Bc0I2', #digest, digest, 0)
    local member = pack_bytes('>c1I4', 'R', 2147483647 - priority) .. instant(NOW) .. numbered
    call('ZADD', INDEX, 0, (rules and 'Q' or 'O') .. numbered, 0, member)
    if rules then
      call('HSET', DATA, head_field, head, 'c' .. id, card, 'mn' .. WAITING, waiting + 1, 'mseq', place,
        'k' .. digest, key_named .. id .. rest_of_key(rules))
    else
      call('HSET', DATA, head_field, head, 'c' .. id, card, 'mn' .. WAITING, waiting + 1, 'mseq', place)
    end
    return { { 1 }, WORK + tell_now(waiting) }
  end

  -- What there is of each newcomer of one call, in arrays; of those with a key also in arrays of their own, where they are counted
  -- apart. `made` is what came into being, or was changed, in this call: by the ids and the digests, if they may come again.
  local text, ids, fields, cards, classes, starts, plans_at, lanes_of, digests, key_fields, key_rules, names, made
  -- What the store had: whether each newcomer was there, and by its key the holder's record, head, card, and calls that changed it.
  local were_there, records, held_at, heads, cards_of_held, calls_of_held
  -- What the records of keys that are vacant have behind their holders, by the rules that came last.
  local rest_of, rest
  -- Of each lane of this call: its limits as they came, how a head ends that has it, and whether those are its limits here.
  local lanes, lane_ends, is_in_place

  -- What new jobs that are equally urgent have in common: their state, how the member begins that says so, what their heads have
  -- behind their numbers, and how many of them there are. A job of a lane is ready, and the lane says when it may start, or not yet.
  local function class_of(priority, due, laned)
    if due > NOW then
      return { DELAYED, (laned and 'E' or 'D') .. instant(due), rest_of_new(priority, due, laned and NOT_READY or -1), 0 }
    end
    local rank_of = pack_bytes('>I4', 2147483647 - priority) .. instant(due)
    if laned then return { PARKED, rank_of, rest_of_new(priority, due, READY), 0 } end
    return { WAITING, 'R' .. rank_of, rest_of_new(priority, due, -1), 0 }
  end

  -- Lets the limits of a lane be those that came, if it has none yet; true if they are.
  local function put_in_place(lane)
    local found = is_in_place[lane]
    if found == nil then
      local key, concurrency, max, per, hold = unpack(lanes[lane])
      local plan = lane_plan(key)
      found = not plan or plan[L_CONCURRENCY] == concurrency and plan[L_MAX] == max and plan[L_PER] == per and plan[L_HOLD] == hold
      if not plan then put_lane(key, concurrency, max, per, hold) end
      if found then touch(key) end
      is_in_place[lane], lane_ends[lane] = found, pack_bytes('>I2c0', #key, key)
    end
    return found
  end

  -- When a newcomer is due whose rules let it wait.
  local function due_by(rules, due, plan_at)
    local _, _, _, _, items = unpack_bytes(PLANNED, text, plan_at)
    return is_full(rules, items) and due or math.max(due, NOW + rules[R_WAIT])
  end

  -- Reads newcomers from a place on, up to the first that brings more. Returns where that one is, how many there are, and how many of
  -- them have a key.
  local function read_simple(at, rules)
    local size, keyed, of_priority, of_due, of_laned, class = 0, 0, nil, nil, nil, nil
    while at <= #text do
      local id, priority, delay, plan_size, card_size, more_size, lane, plan_at = unpack_bytes(NEWCOMER, text, at)
      if more_size > 0 then break end
      size = size + 1
      local due, card_at = NOW + delay, plan_at + plan_size
      plans_at[size] = plan_size > 0 and plan_at
      if plan_size > 0 then
        local rule, digest, key_named = unpack_bytes(KEY_PLANNED, text, plan_at)
        if rules[rule][R_WAIT] > 0 then due = due_by(rules[rule], due, plan_at) end
        keyed = keyed + 1
        digests[keyed], key_fields[keyed], key_rules[keyed], names[keyed] = digest, 'k' .. digest, rules[rule], key_named
      end
      if priority ~= of_priority or due ~= of_due or lane > 0 ~= of_laned then
        of_priority, of_due, of_laned, class = priority, due, lane > 0, class_of(priority, due, lane > 0)
      end
      lanes_of[size] = lane
      ids[size], fields[size], classes[size], starts[size], at = id, 'j' .. id, class, at, card_at + card_size
      cards[size] = sub(text, card_at, at - 1)
    end
    return at, size, keyed
  end

  -- Reads what the store has of them. Who holds several keys' records is read once.
  local function look_up(size, keyed)
    were_there, records = call('HMGET', DATA, unpack(fields, 1, size)), NONE
    if keyed == 0 then return end
    records = call('HMGET', DATA, unpack(key_fields, 1, keyed))
    local head_fields, card_fields, call_fields, known, count = {}, {}, {}, {}, 0
    for place = 1, keyed do
      if records[place] then
        local _, _, id = unpack_bytes(HOLDER_OF_KEY, records[place])
        local at = made and known[id]
        if not at then
          count = count + 1
          at, known[id] = count, made and count
          head_fields[at], card_fields[at], call_fields[at] = 'j' .. id, 'c' .. id, 'a' .. id
        end
        held_at[place] = at
      end
    end
    if count == 0 then return end
    heads, cards_of_held = call('HMGET', DATA, unpack(head_fields)), call('HMGET', DATA, unpack(card_fields))
    calls_of_held = call('HMGET', DATA, unpack(call_fields))
  end

  -- Writes what a queued job that has nothing else becomes if it is due then, and returns its head. Nothing if its place in the index
  -- would change that is yet to be written.
  local function change_simply(id, head, due, card, calls, is_pending)
    local state, was_due = sub(head, 1, 1), sub(head, 12, 17)
    local new_state, new_due = due > NOW and DELAYED or WAITING, instant(due)
    if new_state ~= state or new_due ~= was_due then
      if is_pending then return end
      local rank_of = pack_bytes('>I4', 2147483647 - unpack_bytes('>i4', head, 8))
      remove_later(state == DELAYED and 'D' .. was_due .. id or 'R' .. rank_of .. was_due .. sub(head, 2, 7) .. id)
      add_later(new_state == DELAYED and 'D' .. new_due .. id or 'R' .. rank_of .. new_due .. sub(head, 2, 7) .. id)
      if new_state ~= state then
        count_state(state, -1)
        count_state(new_state, 1)
      end
    end
    head = new_state .. sub(head, 2, 11) .. new_due .. sub(head, 18, 33) .. instant(NOW) .. sub(head, 40, 59) .. '\1' .. sub(head, 61)
    write('j' .. id, head)
    write('c' .. id, card)
    write('a' .. id, calls)
    tell('work')
    return head
  end

  -- As `accept`, for a newcomer whose key is held by a job that has nothing else, or that is gone: its answer, if it is kept, or
  -- changes who is queued. `own` is what that one became in this call.
  local function meet(place, nth, own)
    local at = held_at[nth]
    local record, head, card, calls = records[nth], heads[at], cards_of_held[at], calls_of_held[at]
    if own then record, head, card, calls = own[1], own[2], own[3], own[4] end
    local rules, own_id, own_card = key_rules[nth], ids[place], cards[place]
    local _, _, id, _, since, completed_until, failed_until, _, ended, _, _, mark = unpack_bytes(KEY_RECORD, record)
    local key_at, lane
    if head then key_at, lane = parts_at_end(head) end
    if id == own_id or head and (not key_at or calls and applied_before(calls, own_id)) then return end
    local state, standing, age = head and sub(head, 1, 1) or ended ~= '' and ended or REVOKED, 0, NOW - since
    if state == RUNNING then
      standing = 1
    elseif not QUEUED[state] then
      standing = state == COMPLETED and 3 or 4
      if (state == COMPLETED and completed_until or failed_until) <= NOW then return end
    end
    local verdict = verdict_of(rules, standing, age)
    if verdict ~= KEEP and verdict ~= UPDATE and verdict ~= POSTPONE then return end
    local _, _, _, own_mark, items, size = unpack_bytes(PLANNED, text, plans_at[place])
    local options_differ = 0
    if head then
      local _, options_at, card_key_at, mark_at, more_at = card_parts(card)
      local _, own_at, own_end = card_parts(own_card)
      if more_at > mark_at then mark = sub(card, mark_at, more_at - 1) end
      local own_lane = lanes_of[place] > 0 and lanes[lanes_of[place]][1] or ''
      if lane ~= own_lane or sub(head, 8, 11) ~= sub(classes[place][3], 1, 4)
        or sub(card, options_at, card_key_at - 1) ~= sub(own_card, own_at, own_end - 1) then
        options_differ = 1
      end
    end
    local differ = (mark ~= own_mark and 2 or 0) + options_differ
    if verdict == KEEP then
      if mark ~= own_mark and rules[R_STRICT] then return end
      return { id, state, age, differ }
    end
    if state == BLOCKED or lane ~= '' or sub(head, 66, 69) ~= NEVER then return end
    local due = read_number(head, 12)
    local till = verdict == POSTPONE and postponed_till(rules, read_number(head, 40), due, unpack_bytes('>I4', head, 18))
    local outcome = till and 'postponed' or 'updated'
    calls, card = with_call(calls or '', own_id, outcome, id), with_payload(card, own_card, own_mark, items, size)
    head = change_simply(id, head, till or due, card, calls, own)
    if made then made[digests[nth]] = { record, head, card, calls } end
    return head and { id, state, age, differ, CHANGES[outcome] }
  end

  -- As `make`, for a newcomer whose key, if it has one, nobody holds. Written out: calls of `write` and `add_later` would take a tenth
  -- of all.
  local function create_simply(place, nth, id, class)
    local words, members, card, record = written, added, cards[place], nil
    sequence = sequence + 1
    local place_text = number(sequence)
    local numbered_id, kind, key_end = place_text .. id, 'O', '\0'
    if plans_at[place] then
      local digest, rules = digests[nth], key_rules[nth]
      if rules ~= rest_of then rest_of, rest = rules, rest_of_key(rules) end
      record, kind, key_end = names[nth] .. id .. rest, 'Q', (#digest == 16 and '\16' or string.char(#digest)) .. digest
      words[writes + 1], words[writes + 2], writes = key_fields[nth], record, writes + 2
    end
    local lane, state, size = lanes_of[place], class[1], adds
    local head = state .. place_text .. class[3] .. key_end .. (lane > 0 and lane_ends[lane] or '\0\0')
    words[writes + 1], words[writes + 2], words[writes + 3], words[writes + 4] = fields[place], head, 'c' .. id, card
    members[size + 1], members[size + 2], members[size + 3] = 0, kind .. numbered_id, 0
    if lane == 0 then
      members[size + 4] = class[2] .. (state == DELAYED and id or numbered_id)
    else
      local name = lanes[lane][1] .. '\0'
      if state == DELAYED then
        members[size + 4], members[size + 5], members[size + 6] = class[2] .. id, 0, 'v' .. name .. id
      else
        members[size + 4], members[size + 5], members[size + 6] = 't' .. name .. numbered_id, 0, 'q' .. name .. class[2] .. numbered_id
      end
      size = size + 2
    end
    class[4], writes, adds = class[4] + 1, writes + 4, size + 4
    if made then
      made[id] = true
      if record then made[digests[nth]] = { record, head, card, false } end
    end
  end

  -- Takes newcomers from a place in a text on; `differ` says that no two are the same or have the same key. Their answers go into
  -- `answers`. Returns where the first one is that has to go the long way, if there is one.
  function accept_together(newcomers, at, rules, given_lanes, differ, answers)
    text, ids, fields, cards, classes, starts, plans_at = newcomers, {}, {}, {}, {}, {}, {}
    digests, key_fields, key_rules, names, held_at = {}, {}, {}, {}, {}
    lanes_of, lanes, lane_ends, is_in_place = {}, given_lanes, {}, {}
    heads, cards_of_held, calls_of_held, rest_of, made = NONE, NONE, NONE, nil, not differ and {}
    local first, nth, size, keyed = sequence, 0, nil, nil
    at, size, keyed = read_simple(at, rules)
    if size == 0 then return at end
    look_up(size, keyed)
    if lanes then
      local names_of_lanes = {}
      for place = 1, #lanes do names_of_lanes[place] = lanes[place][1] end
      read_lane_plans(names_of_lanes)
    end
    for place = 1, size do
      local id, is_keyed, own = ids[place], plans_at[place], nil
      local is_there = were_there[place] or made and made[id]
      if is_keyed then
        nth = nth + 1
        own = made and made[digests[nth]]
      end
      if is_keyed and (own or records[nth]) then
        answers[place] = not is_there and meet(place, nth, own) or nil
        if not answers[place] then
          at = starts[place]
          break
        end
      else
        if not is_there then
          if lanes_of[place] > 0 and not put_in_place(lanes_of[place]) then
            at = starts[place]
            break
          end
          create_simply(place, nth, id, classes[place])
        end
        answers[place] = 1
      end
    end
    for place = 1, size do
      local class = classes[place]
      if class[4] > 0 then
        count_state(class[1], class[4])
        class[4] = 0
      end
    end
    if sequence > first then
      numbered = true
      tell('work')
    end
    local all = at > #text
    text, cards, cards_of_held, made = '', NONE, NONE, nil -- they may be large
    return not all and at or nil
  end
end
