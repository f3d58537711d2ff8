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

local ACCEPTED, STARTED, ENDED, ABORTING, FOLLOWED, CHANGED, PLACE, PLACE_IN_CHAIN, BLOCKERS = 10, 11, 12, 13, 14, 15, 16, 17, 18
local LEASE, WORKER, DIGEST, LANE, HAS_MORE = 19, 20, 21, 22, 23
local FOLLOWS, CHAIN, ROOT_QUEUE, NEXT, NEXT_QUEUE, OVER, OVER_AT = 24, 25, 26, 27, 28, 29, 30
local EXPIRES, AWAITED, HAS_ERROR, SINCE = 31, 32, 33, 34
local LONE = 74 -- bytes, without lease, worker, key and lane
local HEAD = '>c1I6i4I6I4I4I4I4I6I6I6I6BBBBI4I4Bc0Bc0Bc0I2c0'

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

local function instant(at) return pack_bytes('>I6', math.max(0, math.min(at, LATEST))) end
local function number(n) return pack_bytes('>I6', n) end
local function read_number(text, at) return (unpack_bytes('>I6', text, at)) end

local function rank(head)
  return pack_bytes('>I4I6I6', 2147483647 - head[PRIORITY], math.max(0, math.min(head[DUE], LATEST)), head[SEQ])
end

local function is_over(head) return head[ENDED] and not head[CHAIN] and (not head[NEXT] or head[OVER]) end

-- A head has false for what it does not have, and notes when it gets more than most have.
local ABSENT = { __index = {} }

for field = FOLLOWS, SINCE do ABSENT.__index[field] = false end

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
  if head[LANE] == '' then head[LANE] = false end
  head[PLACE] = head[PLACE] > 0 and head[PLACE] - 1
  setmetatable(head, ABSENT)
  if at <= #text then
    local more = unpack_record(sub(text, at))
    head[HAS_MORE] = true
    for place = 1, #more do rawset(head, HAS_MORE + place, more[place]) end
  end
  return head
end

local function head_text(head)
  local lease, worker, digest, lane = head[LEASE], head[WORKER], head[DIGEST] or '', head[LANE] or ''
  local text = pack_bytes(HEAD, head[STATE], head[SEQ], head[PRIORITY], head[DUE], head[ATTEMPT], head[FAILURES], head[CRASHES],
    head[MISSES], head[UPDATED], head[ACCEPTED], (head[STARTED] or -1) + 1, (head[ENDED] or -1) + 1, head[ABORTING],
    head[FOLLOWED], head[CHANGED], (head[PLACE] or -1) + 1, head[PLACE_IN_CHAIN], head[BLOCKERS], #lease, lease, #worker, worker,
    #digest, digest, #lane, lane)
  if not head[HAS_MORE] then return text end
  local more, size = {}, SINCE
  while size > HAS_MORE and not head[size] do size = size - 1 end
  for field = FOLLOWS, size do more[field - HAS_MORE] = head[field] end
  return size > HAS_MORE and text .. pack(more) or text
end

-- The head of a job that has just been accepted.
local function first_head(state, seq, priority, due)
  return setmetatable({ state, seq, priority, due, 0, 0, 0, 0, NOW, NOW, false, false, 0, 0, 0, false, 0, 0, '', '', false, false, false },
    ABSENT)
end

-- Where the key stands in a head behind which nothing comes but its lane, and that lane, '' for none; else nothing.
local function parts_at_end(text)
  if #text == LONE then return LONE - 2, '' end
  local worker_at = 71 + string.byte(text, 70)
  local key_at = worker_at + 1 + string.byte(text, worker_at)
  local lane_at = key_at + 1 + string.byte(text, key_at)
  if lane_at + 1 == #text then return key_at, '' end
  local high, low = string.byte(text, lane_at, lane_at + 1)
  if lane_at + 1 + high * 256 + low == #text then return key_at, sub(text, lane_at + 2) end
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

local function has_others(head) return head[LANE] or head[EXPIRES] end

-- Its place among all jobs.
local function accepted_as(id, head) return (head[DIGEST] and 'Q' or 'O') .. number(head[SEQ]) .. id end

-- Whether a key is found by its holder's place among the jobs. It is not if that is gone, has not come into being when the key was
-- taken, or does not know it any more: then it has a place of its own.
local function is_shown(digest, record, head)
  return head and head[DIGEST] == digest and head[ACCEPTED] == record[K_SINCE]
end
