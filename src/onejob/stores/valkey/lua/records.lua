-- records: what a queue holds, and how it is written. A queue is two keys under one hash tag: `data`, a hash of records
-- whose field begins with the letter of their kind, and `index`, a sorted set of equal scores whose members begin
-- likewise, so that it is ordered by their bytes. Which members a job has is a function of its head alone.
--
-- data   j id head · c id card · r id result · e id error · p id progress · b id blockers · k digest key · n digest
--        absorbed · l lane limits · w worker alive until · i source messages taken · o target number message · m… counts
-- index  O seq id (all, by acceptance) · R rank id (claimable) · D due id · E due id (in a lane) · X expires id ·
--        W worker id (running) · Z state ended id (chains that are over) · K since digest · G forget digest ·
--        f chain id (follows) · g chain id queue (follows, elsewhere) · a chain id queue (waits) · A chain id queue (waits, or has yet to read) · h id chain (is
--        held up by) · v lane id (not ready) · t lane seq id, q lane rank id (ready) · s lane id (has a slot) ·
--        y lane rank id (its turn) · H lane rank id (ready, kept its slot) · S lane at id lease (starts) · L opens lane ·
--        o target number (messages) · d origin seq id (dead letters)

local DATA, INDEX, QUEUE = KEYS[1], KEYS[2], ARGV[1]
local call = redis.call
local pack, unpack_record = cmsgpack.pack, cmsgpack.unpack

-- The fields of a head: what changes as a job lives, and what its ways depend on.
local STATE, SEQ, PRIORITY, DUE, ATTEMPT, FAILURES, CRASHES, MISSES, UPDATED = 1, 2, 3, 4, 5, 6, 7, 8, 9
local STARTED, ENDED, WORKER, LEASE, ABORTING, PLACE, LANE, DIGEST, FOLLOWS = 10, 11, 12, 13, 14, 15, 16, 17, 18
local CHAIN, ROOT_QUEUE, PLACE_IN_CHAIN, NEXT, NEXT_QUEUE, OVER, OVER_AT = 19, 20, 21, 22, 23, 24, 25
local EXPIRES, BLOCKERS, AWAITED, HAS_ERROR = 26, 27, 28, 29
-- The fields of a card: what a job is.
local TASK, PAYLOAD, OPTIONS, KEY, PLAN, FINGERPRINT, LANE_PLAN, SIZE, ITEMS = 1, 2, 3, 4, 5, 6, 7, 8, 9
local CALLS, MAX_CRASHES, SINCE, RUNS_ANYWAY, ORIGIN, ORIGIN_QUEUE, ACCEPTED, GRAVE = 10, 11, 12, 13, 14, 15, 16, 17
-- The fields of a key's record.
local K_TEXT, K_TASK, K_HOLDER, K_GENERATION, K_SINCE, K_COMPLETED, K_FAILED = 1, 2, 3, 4, 5, 6, 7
local K_FOLLOWS, K_ENDED, K_ENDED_AT, K_FORGET, K_FINGERPRINT = 8, 9, 10, 11, 12
-- The fields of a lane's limits, and of a queue's.
local L_CONCURRENCY, L_MAX, L_PER, L_HOLD, L_OPENS = 1, 2, 3, 4, 5
local Q_CONCURRENCY, Q_MAX, Q_PER, Q_PAUSED = 1, 2, 3, 4

local BLOCKED, DELAYED, PARKED, WAITING, RUNNING = 'b', 'd', 'p', 'w', 'r'
local COMPLETED, FAILED, REVOKED = 'c', 'f', 'v'
local WORDS = { b = 'blocked', d = 'delayed', p = 'parked', w = 'waiting', r = 'running', c = 'completed', f = 'failed', v = 'revoked' }
local QUEUED = { b = true, d = true, p = true, w = true }
local NOT_READY, READY, HAS_SLOT, KEEPS_SLOT = 0, 1, 2, 3
local LATEST = 2 ^ 48 - 1
local TOP = string.rep('\255', 8) -- above whatever a member goes on with

local NOW = tonumber(ARGV[2])
if not NOW then
  local time = call('TIME')
  NOW = time[1] * 1000 + math.floor(time[2] / 1000)
end

local fresh = 0 -- 1 if nothing was here before
local heads, cards, before, changed, written, topics, counted = {}, {}, {}, {}, {}, {}, {}

local function instant(at) return struct.pack('>I6', math.max(0, math.min(at, LATEST))) end
local function number(n) return struct.pack('>I6', n) end
local function read_number(text, at) return (struct.unpack('>I6', text, at)) end
local function rank(head) return struct.pack('>I4', 2147483647 - head[PRIORITY]) .. instant(head[DUE]) .. number(head[SEQ]) end

local function get(kind, name)
  local found = call('HGET', DATA, kind .. name)
  return found and unpack_record(found)
end
local function set(kind, name, record) call('HSET', DATA, kind .. name, pack(record)) end
local function drop(kind, name) call('HDEL', DATA, kind .. name) end

local function add(member) call('ZADD', INDEX, 0, member) end
local function remove(member) call('ZREM', INDEX, member) end

local function tell(topic, queue) topics[topic .. ':' .. (queue or QUEUE)] = true end

local function is_over(head) return head[ENDED] and not head[CHAIN] and (not head[NEXT] or head[OVER]) end

-- Which members of the index a job has.
local function members(id, head)
  if not head then return {} end
  local state, lane, place, found = head[STATE], head[LANE], head[PLACE], {}
  if state == WAITING then
    found[1] = 'R' .. rank(head) .. id
  elseif state == RUNNING then
    found[1] = 'W' .. head[WORKER] .. '\0' .. id
  elseif state == DELAYED then
    found[1] = (lane and 'E' or 'D') .. instant(head[DUE]) .. id
  elseif state == BLOCKED then
    if head[FOLLOWS] then found[1] = 'f' .. head[FOLLOWS] .. id end
  elseif state ~= PARKED and is_over(head) then
    found[1] = 'Z' .. (head[OVER] or state) .. instant(head[OVER_AT] or head[ENDED]) .. id
  end
  if lane and place then
    local name = lane .. '\0'
    local ready = state == PARKED or state == WAITING
    if place == NOT_READY then
      found[#found + 1] = 'v' .. name .. id
    elseif place == READY then
      found[#found + 1] = 't' .. name .. number(head[SEQ]) .. id
      found[#found + 1] = 'q' .. name .. rank(head) .. id
    else
      found[#found + 1] = 's' .. name .. id
      if place == KEEPS_SLOT and ready then found[#found + 1] = 'H' .. name .. rank(head) .. id end
      if place == HAS_SLOT and state == WAITING then found[#found + 1] = 'y' .. name .. rank(head) .. id end
    end
  end
  if head[EXPIRES] and QUEUED[state] then found[#found + 1] = 'X' .. instant(head[EXPIRES]) .. id end
  return found
end

-- A job's head, to be read; who changes it says so by `change`.
local function head_of(id)
  local head = heads[id]
  if head == nil then
    local found = call('HGET', DATA, 'j' .. id)
    head = found and unpack_record(found)
    heads[id] = head
  end
  return head
end
local function card_of(id)
  local card = cards[id]
  if card == nil then
    card = get('c', id)
    cards[id] = card
  end
  return card
end

-- Both at once, where both are needed.
local function job_of(id)
  if heads[id] == nil and cards[id] == nil then
    local found = call('HMGET', DATA, 'j' .. id, 'c' .. id)
    heads[id], cards[id] = found[1] and unpack_record(found[1]), found[2] and unpack_record(found[2])
  end
  return head_of(id), card_of(id)
end

-- A head that is to be changed now, before the index is read again. Nothing is written yet: `flush`, which comes before every
-- such read, compares what it was with what it has become, however often it was changed.
local function change(id)
  local head = head_of(id)
  if head and not before[id] then
    before[id] = { head[STATE], members(id, head) }
    changed[#changed + 1] = id
  end
  return head
end
local function count_state(state, by) counted[state] = (counted[state] or 0) + by end

local function in_parts(command, key, words)
  for from = 1, #words, 2000 do call(command, key, unpack(words, from, math.min(from + 1999, #words))) end
end

-- Writes what has changed: records, and the difference in the index.
local function flush()
  if not changed[1] and not written[1] then return end
  local gone, new, fields, ids = {}, {}, written, changed
  changed, written = {}, {}
  for _, id in ipairs(ids) do
    local head, was = heads[id], before[id]
    before[id] = nil
    local kept = {}
    for _, member in ipairs(members(id, head)) do kept[member] = true end
    for _, member in ipairs(was[2]) do
      if kept[member] then kept[member] = nil else gone[#gone + 1] = member end
    end
    if not was[1] then kept['O' .. number(head[SEQ]) .. id] = true end
    for member in pairs(kept) do
      new[#new + 1] = 0
      new[#new + 1] = member
    end
    if was[1] ~= head[STATE] then
      if was[1] then count_state(was[1], -1) end
      count_state(head[STATE], 1)
    end
    fields[#fields + 1] = 'j' .. id
    fields[#fields + 1] = pack(head)
  end
  in_parts('ZREM', INDEX, gone)
  in_parts('ZADD', INDEX, new)
  in_parts('HSET', DATA, fields)
end

-- Members that begin so, in order. What is yet to be written goes first.
local function range(start, limit)
  flush()
  return call('ZRANGEBYLEX', INDEX, '[' .. start, '(' .. start .. TOP, 'LIMIT', 0, limit)
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


local sequence
local function next_number()
  sequence = (sequence or tonumber(call('HGET', DATA, 'mseq')) or 0) + 1
  return sequence
end

local function save_card(id)
  written[#written + 1] = 'c' .. id
  written[#written + 1] = pack(cards[id])
end

-- A job comes into being.
local function create(id, head, card)
  head[SEQ] = next_number()
  heads[id], cards[id] = head, card
  before[id], changed[#changed + 1] = { false, {} }, id
  save_card(id)
  if card[ORIGIN] then add('d' .. card[ORIGIN_QUEUE] .. '\0' .. number(head[SEQ]) .. id) end
end

-- A job that has ended is gone.
local function erase(id)
  flush()
  local head, card = job_of(id)
  for _, member in ipairs(members(id, head)) do remove(member) end
  remove('O' .. number(head[SEQ]) .. id)
  if card[ORIGIN] then remove('d' .. card[ORIGIN_QUEUE] .. '\0' .. number(head[SEQ]) .. id) end
  call('HDEL', DATA, 'j' .. id, 'c' .. id, 'r' .. id, 'e' .. id, 'p' .. id, 'b' .. id)
  count_state(head[STATE], -1)
  heads[id], cards[id] = false, false
end

-- Why a job ended, or was not done yet.
local function error_of(id) return head_of(id)[HAS_ERROR] and call('HGET', DATA, 'e' .. id) end
local function set_error(id, error)
  change(id)[HAS_ERROR] = error and true or false
  if error then call('HSET', DATA, 'e' .. id, error) else call('HDEL', DATA, 'e' .. id) end
end

local function new_head()
  local head = {}
  for field = 1, HAS_ERROR do head[field] = false end
  for field = ATTEMPT, MISSES do head[field] = 0 end
  head[ABORTING], head[PLACE_IN_CHAIN], head[BLOCKERS] = 0, 0, 0
  head[UPDATED] = NOW
  return head
end

-- A reply: what an operation says, what was hinted at, whether messages are to be delivered, when this was, and whether
-- nothing was here before.
local function reply(answer)
  flush()
  if sequence then call('HSET', DATA, 'mseq', sequence) end
  for state, by in pairs(counted) do
    if by ~= 0 then call('HINCRBY', DATA, 'mn' .. state, by) end
  end
  local told = {}
  for topic in pairs(topics) do told[#told + 1] = topic end
  return { answer, told, range('o', 1)[1] and 1 or 0, NOW, fresh }
end
