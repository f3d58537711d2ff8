-- changes: what one call knows of a queue, and what it has yet to write. Jobs and keys are read once and changed here; what has become of
-- them goes into the records and the index together, before the index is read again and at the end. A library lives on: every call
-- begins by forgetting what the last one knew.

local OUTGOING, FRESH, TOLD, WORK, DONE, SCHEDULES = 1, 2, 4, 8, 16, 32

-- Jobs and keys, read and as bytes (false: not there), and jobs whose members are yet to be added; then what is to be written, and how
-- much of it.
local heads, cards, keys, head_texts, card_texts, key_texts, unwritten
local written, added, erased, writes, adds, sequence, numbered, limits_text
local on_begin, emptied, locate, forget_all, open, get, set, drop, add, remove, tell, fetch, head_of, card_text_of, card_of, job_of,
  key_of, count_state, write, add_later, remove_later, in_parts, gather, flush, change, calls_of, save_calls, note_followed,
  range_at_once, range, last, count, until_time, has, are_any, next_number, save_card, save_key, forget_key, know_key, create, erase,
  error_of, set_error, tell_now, reply, begin, new_head
do
  local calls, changed, was_states, was_members, was_others, places_changed, removed
  local topics, counted, counts, fresh, removals
  local forgetting = {}

  function on_begin(forget) forgetting[#forgetting + 1] = forget end

  -- A table with nothing in it: the same, if that was not used.
  function emptied(known) return known and next(known) == nil and known or {} end

  -- Which queue is called, and when.
  function locate(names, words)
    if not call then
      call, pack, unpack_record, sub = redis.call, cmsgpack.pack, cmsgpack.unpack, string.sub
      pack_bytes, unpack_bytes = struct.pack, struct.unpack
    end
    DATA, INDEX, QUEUE, NOW, channel, sender = names[1], names[2], words[1], tonumber(words[2]), words[4], words[5]
    if not NOW then
      local time = call('TIME')
      NOW = time[1] * 1000 + math.floor(time[2] / 1000)
    end
  end

  function forget_all()
    heads, cards, keys = emptied(heads), emptied(cards), emptied(keys)
    head_texts, card_texts, key_texts = emptied(head_texts), emptied(card_texts), emptied(key_texts)
    calls = emptied(calls)
    changed, was_states, was_members = emptied(changed), emptied(was_states), emptied(was_members)
    was_others, places_changed, unwritten = emptied(was_others), emptied(places_changed), emptied(unwritten)
    written, added, removed, erased = emptied(written), emptied(added), emptied(removed), emptied(erased)
    writes, adds, removals = 0, 0, 0
    topics, counted, counts, sequence, numbered = emptied(topics), emptied(counted), emptied(counts), 0, false
    fresh, limits_text = false, nil
    for place = 1, #forgetting do forgetting[place]() end
  end

  function begin(names, words)
    locate(names, words)
    forget_all()
  end

  -- The first step of every script that writes: it also learns the last number given, how many jobs are in the common states, and
  -- the queue's limits. Every key of a queue exists from its first use on, so that in the midst of a slot's migration a script is
  -- refused as a whole or runs as a whole.
  function open()
    local found = call('HMGET', DATA, 'm', 'mseq', 'mn' .. WAITING, 'mn' .. RUNNING, 'mn' .. COMPLETED, 'mn' .. DELAYED, 'mlimits')
    local format = found[1]
    sequence, counts[WAITING] = tonumber(found[2] or 0), tonumber(found[3] or 0)
    counts[RUNNING], counts[COMPLETED] = tonumber(found[4] or 0), tonumber(found[5] or 0)
    counts[DELAYED], limits_text = tonumber(found[6] or 0), found[7]
    if not format then
      local time = call('TIME')
      call('HSET', DATA, 'm', FORMAT, 'mborn', time[1] .. '.' .. time[2] .. ' ' .. (sender or '')) -- never the same again
      call('ZADD', INDEX, 0, '')
      fresh = true
    elseif format ~= FORMAT then
      error({ err = 'FORMAT ' .. format .. ' instead of ' .. FORMAT })
    end
  end

  function get(kind, name)
    local found = call('HGET', DATA, kind .. name)
    return found and unpack_record(found)
  end

  function set(kind, name, record) call('HSET', DATA, kind .. name, pack(record)) end
  function drop(kind, name) call('HDEL', DATA, kind .. name) end
  function add(member) call('ZADD', INDEX, 0, member) end
  function remove(member) call('ZREM', INDEX, member) end

  -- Hints to whoever waits for this queue.
  function tell(topic) topics[topic] = true end

  -- Reads records of many jobs at once: of each `kind`, those that are not known yet; of all names, or of some places.
  function fetch(kind, names, texts, first, last)
    local wanted, fields, size = {}, {}, 0
    for place = first or 1, math.min(last or #names, #names) do
      local name = names[place]
      if texts[name] == nil then
        size = size + 1
        texts[name], wanted[size], fields[size] = false, name, kind .. name
      end
    end
    for from = 1, size, 1000 do
      local found = call('HMGET', DATA, unpack(fields, from, math.min(from + 999, size)))
      for place = 1, #found do texts[wanted[from + place - 1]] = found[place] end
    end
  end

  -- A job's head, to be read; who changes it says so by `change`.
  function head_of(id)
    local head = heads[id]
    if head == nil then
      local text = head_texts[id]
      if text == nil then text = call('HGET', DATA, 'j' .. id) end
      head = text and read_head(text)
      heads[id] = head
    end
    return head
  end

  function card_text_of(id)
    local text = card_texts[id]
    if text == nil then
      text = call('HGET', DATA, 'c' .. id)
      card_texts[id] = text
    end
    return text
  end

  function card_of(id)
    local card = cards[id]
    if card == nil then
      local text = card_text_of(id)
      card = text and read_card(text)
      cards[id] = card
    end
    return card
  end

  -- Both, where both are needed.
  function job_of(id)
    if heads[id] == nil and head_texts[id] == nil then
      local found = call('HMGET', DATA, 'j' .. id, 'c' .. id)
      head_texts[id], card_texts[id] = found[1], card_texts[id] or found[2]
    end
    return head_of(id), card_of(id)
  end

  function key_of(digest)
    local record = keys[digest]
    if record == nil then
      local text = key_texts[digest]
      if text == nil then text = call('HGET', DATA, 'k' .. digest) end
      record = text and read_key(text)
      keys[digest] = record
    end
    return record
  end

  function count_state(state, by) counted[state] = (counted[state] or 0) + by end

  function write(field, value)
    written[writes + 1], written[writes + 2], writes = field, value, writes + 2
  end

  function add_later(member)
    added[adds + 1], added[adds + 2], adds = 0, member, adds + 2
  end

  function remove_later(member)
    removals = removals + 1
    removed[removals] = member
  end

  function in_parts(command, key, words, size)
    size = size or #words
    for from = 1, size, 2000 do call(command, key, unpack(words, from, math.min(from + 1999, size))) end
  end

  -- A member has become another one, if it is another.
  local function replace_later(was, member)
    if member == was then return end
    if was then remove_later(was) end
    if member then add_later(member) end
  end

  -- Puts what has changed to what is to be written: records, and the difference in the index.
  function gather()
    for place = 1, #changed do
      local id, state, others = changed[place], was_states[place], was_others[place] or NONE
      local head = heads[id]
      replace_later(was_members[place], member_of(id, head))
      if others[1] ~= nil or has_others(head) then
        local first, second, third = other_members(id, head)
        replace_later(others[1], first)
        replace_later(others[2], second)
        replace_later(others[3], third)
      end
      if state ~= head[STATE] then
        count_state(state, -1)
        count_state(head[STATE], 1)
      end
      head_texts[id] = head_text(head)
      write('j' .. id, head_texts[id])
    end
    if changed[1] then changed, was_states, was_members, was_others, places_changed = {}, {}, {}, {}, {} end
  end

  function flush()
    gather()
    if erased[1] then
      in_parts('HDEL', DATA, erased)
      erased = {}
    elseif writes == 0 then
      return
    end
    in_parts('ZREM', INDEX, removed, removals)
    in_parts('ZADD', INDEX, added, adds)
    in_parts('HSET', DATA, written, writes)
    written, added, removed, unwritten, writes, adds, removals = {}, {}, emptied(removed), emptied(unwritten), 0, 0, 0
  end

  -- A head that is to be changed now, before the index is read again. Nothing is written yet: `flush`, which comes before every
  -- such read, compares what it was with what it has become, however often it was changed.
  function change(id)
    local head = head_of(id)
    if head and not places_changed[id] then
      if unwritten[id] then flush() end -- what it was is about to be added
      local place = #changed + 1
      changed[place], places_changed[id] = id, place
      was_states[place], was_members[place] = head[STATE], member_of(id, head)
      was_others[place] = has_others(head) and { other_members(id, head) }
    end
    return head
  end

  -- The calls that changed a queued job and are remembered, as a text: see `judge`.
  function calls_of(id, head)
    if head[CHANGED] == 0 then return '' end
    local text = calls[id] or call('HGET', DATA, 'a' .. id)
    calls[id] = text
    return text
  end

  function save_calls(id, text)
    calls[id] = text
    write('a' .. id, text)
  end

  -- Lets a job know that somebody follows it, so that its end looks for them.
  function note_followed(id)
    local head = head_of(id)
    if head and head[FOLLOWED] == 0 then change(id)[FOLLOWED] = 1 end
  end

  -- Members that begin so, in order, where all of them are written at once.
  function range_at_once(start, limit)
    return call('ZRANGEBYLEX', INDEX, '[' .. start, '(' .. start .. TOP, 'LIMIT', 0, limit)
  end

  -- Members that begin so, in order. What is yet to be written goes first.
  function range(start, limit)
    flush()
    return range_at_once(start, limit)
  end

  function last(start, limit)
    flush()
    return call('ZREVRANGEBYLEX', INDEX, '(' .. start .. TOP, '[' .. start, 'LIMIT', 0, limit)
  end

  function count(start)
    flush()
    return call('ZLEXCOUNT', INDEX, '[' .. start, '(' .. start .. TOP)
  end

  -- Members that begin so and whose time, which comes next, is not after `at`.
  function until_time(start, at, limit)
    flush()
    return call('ZRANGEBYLEX', INDEX, '[' .. start, '(' .. start .. instant(at + 1), 'LIMIT', 0, limit)
  end

  function has(member) return call('ZSCORE', INDEX, member) end

  -- Whether jobs may be in one of the states that `open` has counted.
  function are_any(state)
    gather()
    return counts[state] + (counted[state] or 0) > 0
  end

  function next_number()
    sequence, numbered = sequence + 1, true
    return sequence
  end

  function save_card(id)
    card_texts[id] = card_text(cards[id])
    write('c' .. id, card_texts[id])
  end

  -- Writes a key's record.
  function save_key(digest, record)
    keys[digest] = record
    write('k' .. digest, key_text(record))
  end

  function forget_key(digest, record)
    flush()
    remove('K' .. instant(record[K_SINCE]) .. digest)
    if record[K_FORGET] then remove('G' .. instant(record[K_FORGET]) .. digest) end
    call('HDEL', DATA, 'k' .. digest, 'n' .. digest)
    keys[digest] = false
  end

  -- Lets a job know a key, or none.
  function know_key(id, digest)
    local head = change(id)
    remove(accepted_as(id, head))
    head[DIGEST] = digest
    add(accepted_as(id, head))
  end

  -- The head of a job that is accepted now.
  function new_head(state, priority, due) return first_head(state, next_number(), priority, due) end

  -- A job comes into being.
  function create(id, head, card)
    heads[id], cards[id], card_texts[id], unwritten[id] = head, nil, card, true
    write('j' .. id, head_text(head))
    write('c' .. id, card)
    add_later(accepted_as(id, head))
    local member = member_of(id, head)
    if member then add_later(member) end
    if has_others(head) then
      local first, second, third = other_members(id, head)
      replace_later(false, first)
      replace_later(false, second)
      replace_later(false, third)
    end
    count_state(head[STATE], 1)
  end

  -- A job that has ended is gone, with whatever is written of it.
  function erase(id)
    if places_changed[id] or unwritten[id] then flush() end -- what it was is about to be written
    local head, text = head_of(id), card_text_of(id)
    local _, _, _, _, more_at, payload_at = card_parts(text)
    local origin = payload_at > more_at and card_of(id)[ORIGIN_QUEUE]
    replace_later(member_of(id, head), false)
    if has_others(head) then
      local first, second, third = other_members(id, head)
      replace_later(first, false)
      replace_later(second, false)
      replace_later(third, false)
    end
    remove_later(accepted_as(id, head))
    if origin then remove_later('d' .. origin .. '\0' .. number(head[SEQ]) .. id) end
    local size = #erased
    erased[size + 1], erased[size + 2], erased[size + 3], erased[size + 4] = 'j' .. id, 'c' .. id, 'r' .. id, 'p' .. id
    if head[HAS_ERROR] then erased[#erased + 1] = 'e' .. id end
    if head[CHANGED] == 1 then erased[#erased + 1] = 'a' .. id end
    if head[BLOCKERS] > 0 then erased[#erased + 1] = 'b' .. id end
    count_state(head[STATE], -1)
    heads[id], cards[id], head_texts[id], card_texts[id] = false, false, false, false
  end

  -- Why a job ended, or was not done yet.
  function error_of(id) return head_of(id)[HAS_ERROR] and call('HGET', DATA, 'e' .. id) end

  function set_error(id, error)
    change(id)[HAS_ERROR] = error and true or false
    if error then call('HSET', DATA, 'e' .. id, error) else call('HDEL', DATA, 'e' .. id) end
  end


  function tell_now(waiting)
    if waiting > 0 or not channel then return 0 end
    -- Who may not use the channel is told so elsewhere.
    local heard = redis.pcall('PUBLISH', channel, sender .. '\nwork:' .. QUEUE)
    return type(heard) == 'number' and TOLD or 0
  end

  -- A reply: what an operation says, and as one number what it has to say beside: that messages are to be delivered, that nothing
  -- was here before, that other processes have been told of work, and what was hinted at. They are told from here where work came
  -- to a queue that had none, because then somebody may wait for it; all else is told by the client, which does so less often.
  function reply(answer)
    local says = (fresh and FRESH or 0) + (topics.work and WORK or 0) + (topics.done and DONE or 0)
      + (topics.schedules and SCHEDULES or 0)
    if topics.work then says = says + tell_now(counts[WAITING]) end
    gather()
    for state, by in pairs(counted) do
      if by ~= 0 and counts[state] then
        write('mn' .. state, counts[state] + by)
      elseif by ~= 0 then
        call('HINCRBY', DATA, 'mn' .. state, by)
      end
    end
    if numbered then write('mseq', sequence) end
    if range('o', 1)[1] then says = says + OUTGOING end
    return { answer, says }
  end
end
