-- swift: newcomers that bring at most a key, taken as bytes: a table of Lua's for each costs more than all the rest. Alone, if nobody
-- holds its key; together, up to the first that must be looked at more closely. To the byte it is what the long way does.

local accept_alone, accept_together
do
  -- What a new head has behind its number, but for its key; and a key's record that nobody held, behind its holder.
  local function rest_of_new(priority, due)
    return pack_bytes('>i4I6I4I4I4I4I6I6I6I6BI4I4BB', priority, due, 0, 0, 0, 0, NOW, NOW, 0, 0, 0, 0, 0, 0, 0)
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
    local id, priority, delay, plan_size, card_size, more_size, plan_at = unpack_bytes(NEWCOMER, text, at + size)
    local card_at = plan_at + plan_size
    if delay > 0 or more_size > 0 or card_at + card_size ~= #text + 1 then return end
    local rules, digest, key_named = false, '', nil
    if plan_size > 0 then
      local rule
      if packed ~= rules_text then rules_text, last_rules = packed, unpack_record(packed) end
      rule, digest, key_named = unpack_bytes(KEY_PLANNED, text, plan_at)
      rules = last_rules[rule]
      if rules[R_WAIT] > 0 then return end
    end
    local head_field = 'j' .. id
    local found = call('HMGET', DATA, 'm', head_field, 'mseq', 'mn' .. WAITING, rules and 'k' .. digest or 'm')
    if found[1] ~= FORMAT or found[2] or rules and found[5] then return end
    local waiting, place, card = tonumber(found[4] or 0), (found[3] or 0) + 1, sub(text, card_at)
    local numbered = number(place) .. id
    local head = WAITING .. number(place) .. rest_of_new(priority, NOW) .. pack_bytes('>Bc0', #digest, digest)
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

  -- What new jobs that are equally urgent have in common: their state, how the member begins that says so, what their heads have
  -- behind their numbers, and how many of them there are.
  local function class_of(priority, due)
    if due > NOW then return { DELAYED, 'D' .. instant(due), rest_of_new(priority, due), 0 } end
    return { WAITING, pack_bytes('>c1I4', 'R', 2147483647 - priority) .. instant(due), rest_of_new(priority, due), 0 }
  end

  -- When a newcomer is due whose rules let it wait.
  local function due_by(rules, due, text, at)
    local _, _, _, _, items = unpack_bytes(PLANNED, text, at)
    return is_full(rules, items) and due or math.max(due, NOW + rules[R_WAIT])
  end

  -- Heads and cards of those who hold keys, by the keys' records.
  local function holders_of(records, first, last)
    local fields, ids, size, holders = {}, {}, 0, {}
    for place = first, last do
      if records[place] then
        local _, _, id = unpack_bytes(HOLDER_OF_KEY, records[place])
        size = size + 1
        fields[size], ids[size] = 'j' .. id, 'c' .. id
      end
    end
    if size == 0 then return NONE, 0 end
    for place = 1, size do fields[size + place] = ids[place] end
    return call('HMGET', DATA, unpack(fields, 1, 2 * size)), size
  end

  -- As `judge`, for a newcomer whose key is held by a job that has nothing else, or that is gone: its answer, if it is kept.
  local function keep(rules, fingerprint, card, class, record, text, holder_card)
    local _, _, id, _, since, completed_until, failed_until, _, ended, _, _, known_fingerprint = unpack_bytes(KEY_RECORD, record)
    if text and not key_at_end(text) then return end
    local state, standing, age = text and sub(text, 1, 1) or ended ~= '' and ended or REVOKED, 0, NOW - since
    if state == RUNNING then
      standing = 1
    elseif not QUEUED[state] then
      standing = state == COMPLETED and 3 or 4
      if (state == COMPLETED and completed_until or failed_until) <= NOW then return end
    end
    if verdict_of(rules, standing, age) ~= KEEP then return end
    local same = true
    if text then
      local _, options_at, key_at, fingerprint_at, more_at = card_parts(holder_card)
      local _, own_at, own_end = card_parts(card)
      if more_at > fingerprint_at then known_fingerprint = sub(holder_card, fingerprint_at, more_at - 1) end
      same = sub(text, 8, 11) == sub(class[3], 1, 4) and sub(holder_card, options_at, key_at - 1) == sub(card, own_at, own_end - 1)
    end
    local differs = known_fingerprint ~= fingerprint
    if differs and rules[R_STRICT] then return end
    return { id, state, age, (differs and 2 or 0) + (same and 0 or 1) }
  end

  -- Takes newcomers from a place in a text on; `differ` says that no two are the same or have the same key. Their answers go into
  -- `answers`. Returns where the first one is that has to go the long way, if there is one.
  function accept_together(text, at, rules, differ, answers)
    local ids, fields, cards, classes, starts, digests, names, plans_at = {}, {}, {}, {}, {}, {}, {}, {}
    local key_fields, size, keyed, of_priority, of_due, class = {}, 0, 0, nil, nil, nil
    while at <= #text do
      local id, priority, delay, plan_size, card_size, more_size, plan_at = unpack_bytes(NEWCOMER, text, at)
      if more_size > 0 then break end
      size = size + 1
      local due, card_at = NOW + delay, plan_at + plan_size
      digests[size] = false
      if plan_size > 0 then
        local rule, digest, key_named = unpack_bytes(KEY_PLANNED, text, plan_at)
        if rules[rule][R_WAIT] > 0 then due = due_by(rules[rule], due, text, plan_at) end
        keyed = keyed + 1
        key_fields[keyed], digests[size], names[size], plans_at[size] = 'k' .. digest, digest, key_named, plan_at
      end
      if priority ~= of_priority or due ~= of_due then of_priority, of_due, class = priority, due, class_of(priority, due) end
      ids[size], fields[size], classes[size], starts[size], at = id, 'j' .. id, class, at, card_at + card_size
      cards[size] = sub(text, card_at, at - 1)
    end
    if size == 0 then return at end

    for place = 1, keyed do fields[size + place] = key_fields[place] end
    local found = call('HMGET', DATA, unpack(fields, 1, size + keyed))
    local holders, held = holders_of(found, size + 1, size + keyed)
    local made = not differ and {}
    local nth, nth_held, first, from_rules, rest = size, 0, sequence, nil, nil
    for place = 1, size do
      local id, digest, class, is_there, record, head, card = ids[place], digests[place], classes[place], found[place], nil, nil, nil
      if digest then
        nth = nth + 1
        record = found[nth]
        if record then
          nth_held = nth_held + 1
          head, card = holders[nth_held], holders[held + nth_held]
        end
      end
      if made then
        is_there = is_there or made[id]
        local own = digest and made[digest]
        if own then record, head, card = own[1], own[2], own[3] end
      end
      if record then
        local rule, _, _, fingerprint = unpack_bytes(PLANNED, text, plans_at[place])
        answers[place] = not is_there and keep(rules[rule], fingerprint, cards[place], class, record, head, card) or nil
        if not answers[place] then
          at = starts[place]
          break
        end
      else
        answers[place] = 1
        if not is_there then
          local text_of_number = number(next_number())
          local numbered, key_end = text_of_number .. id, '\0'
          class[4] = class[4] + 1
          add_later(class[2] .. (class[1] == DELAYED and id or numbered))
          if digest then
            local rule = rules[unpack_bytes('>I2', text, plans_at[place])]
            if rule ~= from_rules then from_rules, rest = rule, rest_of_key(rule) end
            record, key_end = names[place] .. id .. rest, string.char(#digest) .. digest
            add_later('Q' .. numbered)
            write(fields[nth], record)
          else
            add_later('O' .. numbered)
          end
          head, card = class[1] .. text_of_number .. class[3] .. key_end, cards[place]
          write(fields[place], head)
          write('c' .. id, card)
          if made then
            made[id] = true
            if digest then made[digest] = { record, head, card } end
          end
        end
      end
    end
    for place = 1, size do
      local class = classes[place]
      if class[4] > 0 then
        count_state(class[1], class[4])
        class[4] = 0
      end
    end
    if sequence > first then tell('work') end
    return at <= #text and at or nil
  end
end
