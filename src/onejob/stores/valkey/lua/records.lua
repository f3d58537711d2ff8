-- records: what a queue holds, and how it is written. A queue is two keys under one hash tag: `data`, a hash of records
-- whose field begins with the letter of their kind, and `index`, a sorted set of equal scores whose members begin
-- likewise, so that it is ordered by their bytes. Which members a job has is a function of its head alone.
--
-- data   j id head · c id card · r id result · e id error · p id progress · a id calls that changed it · b id blockers · k digest key · n digest
--        absorbed · l lane limits · w worker alive until · i source messages taken · o target number message · mborn when it came into being · m… counts
-- index  O seq id (all without a key, by acceptance) · Q seq id (all with one) · R rank id (claimable) · D due id · E due id (in a lane) · X expires id ·
--        W worker id (running) · Z state ended id (chains that are over) · K since digest (keys that their
--        holders do not show) · G forget digest ·
--        f chain id (follows) · g chain id queue (follows, elsewhere) · a chain id queue (waits) · A chain id queue (waits, or has yet to read) · h id chain (is
--        held up by) · v lane id (not ready) · t lane seq id, q lane rank id (ready) · s lane id (has a slot) ·
--        y lane rank id (its turn) · H lane rank id (ready, kept its slot) · S lane at id lease (starts) · L opens lane ·
--        o target number (messages) · d origin seq id (dead letters)

local DATA, INDEX, QUEUE, NOW, channel, sender
local call, pack, unpack_record, pack_bytes, unpack_bytes, sub

-- The fields of a head: what changes as a job lives, and what its ways depend on. Those that most jobs have are bytes in a
-- fixed order; the others come after them, packed, and only if there are any.
local STATE, SEQ, PRIORITY, DUE, ATTEMPT, FAILURES, CRASHES, MISSES, UPDATED = 1, 2, 3, 4, 5, 6, 7, 8, 9
local ACCEPTED, STARTED, ENDED, ABORTING, FOLLOWED, CHANGED, PLACE_IN_CHAIN, BLOCKERS = 10, 11, 12, 13, 14, 15, 16, 17
local LEASE, WORKER, DIGEST, HAS_MORE = 18, 19, 20, 21
local LANE, PLACE, FOLLOWS, CHAIN, ROOT_QUEUE, NEXT, NEXT_QUEUE, OVER, OVER_AT = 22, 23, 24, 25, 26, 27, 28, 29, 30
local EXPIRES, AWAITED, HAS_ERROR, SINCE = 31, 32, 33, 34
local HEAD = '>c1I6i4I6I4I4I4I4I6I6I6I6BBBI4I4Bc0Bc0Bc0'
-- The fields of a card: what a job is. The first ones stand behind their lengths, as a claim gives them; the payload is the rest.
local TASK, PAYLOAD, OPTIONS, KEY, MAX_CRASHES, FINGERPRINT = 1, 2, 3, 4, 5, 6
local PLAN, ITEMS, SIZE, LANE_PLAN, RUNS_ANYWAY, GRAVE, ORIGIN, ORIGIN_QUEUE = 7, 8, 9, 10, 11, 12, 13, 14
local CARD = '>I4I2I4I2BI4'
-- The fields of a key's record.
local K_TEXT, K_TASK, K_HOLDER, K_GENERATION, K_SINCE, K_COMPLETED, K_FAILED = 1, 2, 3, 4, 5, 6, 7
local K_FOLLOWS, K_ENDED, K_ENDED_AT, K_FORGET, K_FINGERPRINT = 8, 9, 10, 11, 12
local KEY_RECORD, HOLDER_OF_KEY, NAMED = '>I2c0I2c0c16I4dddBc0Bc0ddBc0', '>I2c0I2c0c16', '>I2c0I2c0'
-- The fields of a lane's limits, and of a queue's.
local L_CONCURRENCY, L_MAX, L_PER, L_HOLD, L_OPENS = 1, 2, 3, 4, 5
local Q_CONCURRENCY, Q_MAX, Q_PER, Q_PAUSED = 1, 2, 3, 4

local BLOCKED, DELAYED, PARKED, WAITING, RUNNING = 'b', 'd', 'p', 'w', 'r'
local COMPLETED, FAILED, REVOKED = 'c', 'f', 'v'
local WORDS = { b = 'blocked', d = 'delayed', p = 'parked', w = 'waiting', r = 'running', c = 'completed', f = 'failed', v = 'revoked' }
local QUEUED = { b = true, d = true, p = true, w = true }
local NONE = {}
local NOT_READY, READY, HAS_SLOT, KEEPS_SLOT = 0, 1, 2, 3
local LATEST = 281474976710655
local TOP = '\255\255\255\255\255\255\255\255' -- above whatever a member goes on with
local FORMAT = '3' -- of all this
-- How much of payloads, results and errors one call moves.
local MOST_BYTES = /* bytes */

-- What one call knows and has yet to write. A library lives on: every call begins by forgetting what the last one knew.
local heads, cards, keys, head_texts, card_texts, key_texts, calls -- false: not there
local changed, was_states, was_members, was_others, places_changed, unwritten
local written, added, removed, erased, writes, adds, removals, topics, counted, counts, sequence, numbered, fresh, limits_text
local forgetting = {}
local function on_begin(forget) forgetting[#forgetting + 1] = forget end

-- A table with nothing in it: the same, if that was not used.
local function emptied(known) return known and next(known) == nil and known or {} end

-- Which queue is called, and when.
local function locate(names, words)
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

local function forget_all()
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
local function begin(names, words)
  locate(names, words)
  forget_all()
end

-- The first step of every script that writes: it also learns the last number given, how many jobs are in the common states, and
-- the queue's limits. Every key of a queue exists from its first use on, so that in the midst of a slot's migration a script is
-- refused as a whole or runs as a whole.
local function open()
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

local function instant(at) return pack_bytes('>I6', math.max(0, math.min(at, LATEST))) end
local function number(n) return pack_bytes('>I6', n) end
local function read_number(text, at) return (unpack_bytes('>I6', text, at)) end
local function rank(head)
  return pack_bytes('>I4I6I6', 2147483647 - head[PRIORITY], math.max(0, math.min(head[DUE], LATEST)), head[SEQ])
end

local function get(kind, name)
  local found = call('HGET', DATA, kind .. name)
  return found and unpack_record(found)
end
local function set(kind, name, record) call('HSET', DATA, kind .. name, pack(record)) end
local function drop(kind, name) call('HDEL', DATA, kind .. name) end

local function add(member) call('ZADD', INDEX, 0, member) end
local function remove(member) call('ZREM', INDEX, member) end

-- Hints to whoever waits for this queue.
local function tell(topic) topics[topic] = true end

local function is_over(head) return head[ENDED] and not head[CHAIN] and (not head[NEXT] or head[OVER]) end

-- A head has false for what it does not have, and notes when it gets more than most have.
local ABSENT = { __index = {} }
for field = LANE, SINCE do ABSENT.__index[field] = false end
function ABSENT.__newindex(head, field, value)
  if value then
    rawset(head, HAS_MORE, true)
    rawset(head, field, value)
  end
end

local function read_head(text)
  local head = { unpack_bytes(HEAD, text) }
  local at = head[HAS_MORE]
  head[HAS_MORE] = false
  head[STARTED], head[ENDED] = head[STARTED] > 0 and head[STARTED] - 1, head[ENDED] > 0 and head[ENDED] - 1
  if head[DIGEST] == '' then head[DIGEST] = false end
  setmetatable(head, ABSENT)
  if at <= #text then
    local more = unpack_record(sub(text, at))
    head[HAS_MORE] = true
    for place = 1, #more do rawset(head, HAS_MORE + place, more[place]) end
  end
  return head
end
local function head_text(head)
  local lease, worker, digest = head[LEASE], head[WORKER], head[DIGEST] or ''
  local text = pack_bytes(HEAD, head[STATE], head[SEQ], head[PRIORITY], head[DUE], head[ATTEMPT], head[FAILURES], head[CRASHES],
    head[MISSES], head[UPDATED], head[ACCEPTED], (head[STARTED] or -1) + 1, (head[ENDED] or -1) + 1, head[ABORTING],
    head[FOLLOWED], head[CHANGED], head[PLACE_IN_CHAIN], head[BLOCKERS], #lease, lease, #worker, worker, #digest, digest)
  if not head[HAS_MORE] then return text end
  local more, size = {}, SINCE
  while size > HAS_MORE and not head[size] do size = size - 1 end
  for field = LANE, size do more[field - HAS_MORE] = head[field] end
  return size > HAS_MORE and text .. pack(more) or text
end

-- Where the parts of a card begin: options, key, fingerprint, what few cards have, and the payload; before them the task.
local function card_parts(text)
  local max_crashes, task, options, key, fingerprint, more, at = unpack_bytes(CARD, text)
  local options_at = at + task
  local key_at = options_at + options
  local fingerprint_at = key_at + (key > 0 and key - 1 or 0)
  local more_at = fingerprint_at + fingerprint
  return at, options_at, key_at, fingerprint_at, more_at, more_at + more, max_crashes, key > 0
end
local function read_card(text)
  local at, options_at, key_at, fingerprint_at, more_at, payload_at, max_crashes, has_key = card_parts(text)
  local card = { sub(text, at, options_at - 1), sub(text, payload_at), key_at > options_at and sub(text, options_at, key_at - 1),
    has_key and sub(text, key_at, fingerprint_at - 1), max_crashes,
    more_at > fingerprint_at and sub(text, fingerprint_at, more_at - 1), false, 0, false, false, false, false, false, false }
  if payload_at > more_at then
    for place, value in ipairs(unpack_record(sub(text, more_at, payload_at - 1))) do card[FINGERPRINT + place] = value end
  end
  return card
end
local function card_text(card)
  local options, key, fingerprint, more = card[OPTIONS] or '', card[KEY], card[FINGERPRINT] or '', {}
  for field = PLAN, ORIGIN_QUEUE do more[field - FINGERPRINT] = card[field] end
  more = pack(more)
  return pack_bytes(CARD, card[MAX_CRASHES], #card[TASK], #options, key and #key + 1 or 0, #fingerprint, #more) .. card[TASK]
    .. options .. (key or '') .. fingerprint .. more .. card[PAYLOAD]
end

local function read_key(text)
  local record = { unpack_bytes(KEY_RECORD, text) }
  record[K_FINGERPRINT + 1] = nil
  if record[K_COMPLETED] < 0 then record[K_COMPLETED] = false end
  if record[K_FAILED] < 0 then record[K_FAILED] = false end
  if record[K_FOLLOWS] == '' then record[K_FOLLOWS] = false end
  if record[K_ENDED] == '' then record[K_ENDED] = false end
  if record[K_ENDED_AT] < 0 then record[K_ENDED_AT] = false end
  if record[K_FORGET] < 0 then record[K_FORGET] = false end
  if record[K_FINGERPRINT] == '' then record[K_FINGERPRINT] = false end
  return record
end
-- How a key's record begins.
local function named(text, task) return pack_bytes(NAMED, #text, text, #task, task) end
local function key_text(record)
  local follows, ended, fingerprint = record[K_FOLLOWS] or '', record[K_ENDED] or '', record[K_FINGERPRINT] or ''
  return pack_bytes(KEY_RECORD, #record[K_TEXT], record[K_TEXT], #record[K_TASK], record[K_TASK], record[K_HOLDER],
    record[K_GENERATION], record[K_SINCE], record[K_COMPLETED] or -1, record[K_FAILED] or -1, #follows, follows, #ended, ended,
    record[K_ENDED_AT] or -1, record[K_FORGET] or -1, #fingerprint, fingerprint)
end

-- The member of the index that says what state a job is in.
local function member_of(id, head)
  local state = head[STATE]
  if state == WAITING then
    return pack_bytes('>c1I4I6I6c16', 'R', 2147483647 - head[PRIORITY], math.max(0, math.min(head[DUE], LATEST)), head[SEQ], id)
  elseif state == RUNNING then
    return 'W' .. head[WORKER] .. '\0' .. id
  elseif state == DELAYED then
    return (head[LANE] and 'E' or 'D') .. instant(head[DUE]) .. id
  elseif state == BLOCKED then
    return head[FOLLOWS] and 'f' .. head[FOLLOWS] .. id
  elseif state ~= PARKED and is_over(head) then
    return 'Z' .. (head[OVER] or state) .. instant(head[OVER_AT] or head[ENDED]) .. id
  end
  return false
end

-- The members that few jobs have: two of lanes, and one of those that may expire; false for what there is not.
local function other_members(id, head)
  local state, lane, place, first, second = head[STATE], head[LANE], head[PLACE], false, false
  if lane and place then
    if place == NOT_READY then
      first = 'v' .. lane .. '\0' .. id
    elseif place == READY then
      first = 't' .. lane .. '\0' .. number(head[SEQ]) .. id
      second = 'q' .. lane .. '\0' .. rank(head) .. id
    else
      first = 's' .. lane .. '\0' .. id
      if place == KEEPS_SLOT and (state == PARKED or state == WAITING) then
        second = 'H' .. lane .. '\0' .. rank(head) .. id
      elseif place == HAS_SLOT and state == WAITING then
        second = 'y' .. lane .. '\0' .. rank(head) .. id
      end
    end
  end
  return first, second, head[EXPIRES] and QUEUED[state] and 'X' .. instant(head[EXPIRES]) .. id
end

-- Reads records of many jobs at once: of each `kind`, those that are not known yet; of all names, or of some places.
local function fetch(kind, names, texts, first, last)
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
local function head_of(id)
  local head = heads[id]
  if head == nil then
    local text = head_texts[id]
    if text == nil then text = call('HGET', DATA, 'j' .. id) end
    head = text and read_head(text)
    heads[id] = head
  end
  return head
end
local function card_text_of(id)
  local text = card_texts[id]
  if text == nil then
    text = call('HGET', DATA, 'c' .. id)
    card_texts[id] = text
  end
  return text
end
local function card_of(id)
  local card = cards[id]
  if card == nil then
    local text = card_text_of(id)
    card = text and read_card(text)
    cards[id] = card
  end
  return card
end
-- Both, where both are needed.
local function job_of(id)
  if heads[id] == nil and head_texts[id] == nil then
    local found = call('HMGET', DATA, 'j' .. id, 'c' .. id)
    head_texts[id], card_texts[id] = found[1], card_texts[id] or found[2]
  end
  return head_of(id), card_of(id)
end
local function key_of(digest)
  local record = keys[digest]
  if record == nil then
    local text = key_texts[digest]
    if text == nil then text = call('HGET', DATA, 'k' .. digest) end
    record = text and read_key(text)
    keys[digest] = record
  end
  return record
end

local function count_state(state, by) counted[state] = (counted[state] or 0) + by end
local function write(field, value)
  written[writes + 1], written[writes + 2], writes = field, value, writes + 2
end
local function add_later(member)
  added[adds + 1], added[adds + 2], adds = 0, member, adds + 2
end
local function remove_later(member)
  removals = removals + 1
  removed[removals] = member
end

local function in_parts(command, key, words, size)
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
local function gather()
  for place = 1, #changed do
    local id, state, others = changed[place], was_states[place], was_others[place] or NONE
    local head = heads[id]
    replace_later(was_members[place], member_of(id, head))
    if others[1] ~= nil or head[HAS_MORE] then
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
local function flush()
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
local function change(id)
  local head = head_of(id)
  if head and not places_changed[id] then
    if unwritten[id] then flush() end -- what it was is about to be added
    local place = #changed + 1
    changed[place], places_changed[id] = id, place
    was_states[place], was_members[place] = head[STATE], member_of(id, head)
    was_others[place] = head[HAS_MORE] and { other_members(id, head) }
  end
  return head
end

-- The calls that changed a queued job and are remembered, as a text: see `judge`.
local function calls_of(id, head)
  if head[CHANGED] == 0 then return '' end
  local text = calls[id] or call('HGET', DATA, 'a' .. id)
  calls[id] = text
  return text
end
local function save_calls(id, text)
  calls[id] = text
  write('a' .. id, text)
end

-- Lets a job know that somebody follows it, so that its end looks for them.
local function note_followed(id)
  local head = head_of(id)
  if head and head[FOLLOWED] == 0 then change(id)[FOLLOWED] = 1 end
end

-- Members that begin so, in order, where all of them are written at once.
local function range_at_once(start, limit)
  return call('ZRANGEBYLEX', INDEX, '[' .. start, '(' .. start .. TOP, 'LIMIT', 0, limit)
end
-- Members that begin so, in order. What is yet to be written goes first.
local function range(start, limit)
  flush()
  return range_at_once(start, limit)
end
local function last(start, limit)
  flush()
  return call('ZREVRANGEBYLEX', INDEX, '(' .. start .. TOP, '[' .. start, 'LIMIT', 0, limit)
end
local function count(start)
  flush()
  return call('ZLEXCOUNT', INDEX, '[' .. start, '(' .. start .. TOP)
end
-- Members that begin so and whose time, which comes next, is not after `at`.
local function until_time(start, at, limit)
  flush()
  return call('ZRANGEBYLEX', INDEX, '[' .. start, '(' .. start .. instant(at + 1), 'LIMIT', 0, limit)
end
local function has(member) return call('ZSCORE', INDEX, member) end

-- Whether jobs may be in one of the states that `open` has counted.
local function are_any(state)
  gather()
  return counts[state] + (counted[state] or 0) > 0
end

local function next_number()
  sequence, numbered = sequence + 1, true
  return sequence
end

local function save_card(id)
  card_texts[id] = card_text(cards[id])
  write('c' .. id, card_texts[id])
end

-- Writes a key's record. A key is found by its holder's place among the jobs, unless that is gone, has not come into being when the
-- key was taken, or does not know it any more: then it has a place of its own.
local function save_key(digest, record)
  keys[digest] = record
  write('k' .. digest, key_text(record))
end
local function is_shown(digest, record, head)
  return head and head[DIGEST] == digest and head[ACCEPTED] == record[K_SINCE]
end
local function forget_key(digest, record)
  flush()
  remove('K' .. instant(record[K_SINCE]) .. digest)
  if record[K_FORGET] then remove('G' .. instant(record[K_FORGET]) .. digest) end
  call('HDEL', DATA, 'k' .. digest, 'n' .. digest)
  keys[digest] = false
end

local function new_head(state, priority, due)
  return setmetatable({ state, next_number(), priority, due, 0, 0, 0, 0, NOW, NOW, false, false, 0, 0, 0, 0, 0, '', '', false, false },
    ABSENT)
end

-- Its place among all jobs.
local function accepted_as(id, head) return (head[DIGEST] and 'Q' or 'O') .. number(head[SEQ]) .. id end

-- Lets a job know a key, or none.
local function know_key(id, digest)
  local head = change(id)
  remove(accepted_as(id, head))
  head[DIGEST] = digest
  add(accepted_as(id, head))
end

-- A job comes into being.
local function create(id, head, card)
  heads[id], cards[id], card_texts[id], unwritten[id] = head, nil, card, true
  write('j' .. id, head_text(head))
  write('c' .. id, card)
  add_later(accepted_as(id, head))
  local member = member_of(id, head)
  if member then add_later(member) end
  if head[HAS_MORE] then
    local first, second, third = other_members(id, head)
    replace_later(false, first)
    replace_later(false, second)
    replace_later(false, third)
  end
  count_state(head[STATE], 1)
end

-- A job that has ended is gone, with whatever is written of it.
local function erase(id)
  if places_changed[id] or unwritten[id] then flush() end -- what it was is about to be written
  local head, text = head_of(id), card_text_of(id)
  local _, _, _, _, more_at, payload_at = card_parts(text)
  local origin = payload_at > more_at and card_of(id)[ORIGIN_QUEUE]
  replace_later(member_of(id, head), false)
  if head[HAS_MORE] then
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
local function error_of(id) return head_of(id)[HAS_ERROR] and call('HGET', DATA, 'e' .. id) end
local function set_error(id, error)
  change(id)[HAS_ERROR] = error and true or false
  if error then call('HSET', DATA, 'e' .. id, error) else call('HDEL', DATA, 'e' .. id) end
end

-- A reply: what an operation says, and as one number what it has to say beside: that messages are to be delivered, that nothing
-- was here before, that other processes have been told of work, and what was hinted at. They are told from here where work came
-- to a queue that had none, because then somebody may wait for it; all else is told by the client, which does so less often.
local OUTGOING, FRESH, TOLD, WORK, DONE, SCHEDULES = 1, 2, 4, 8, 16, 32
local function tell_now(waiting)
  if waiting > 0 or not channel then return 0 end
  -- Who may not use the channel is told so elsewhere.
  local heard = redis.pcall('PUBLISH', channel, sender .. '\nwork:' .. QUEUE)
  return type(heard) == 'number' and TOLD or 0
end
local function reply(answer)
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
