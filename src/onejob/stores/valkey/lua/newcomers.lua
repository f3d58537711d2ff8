-- newcomers: jobs as clients send them, one behind the other in one text: what a head needs, the plan of those with a key, the
-- card as it is stored, and what few jobs have, which is nil for the others. What many share, rules and lanes, comes before all
-- of them, and so does whether no two of them are the same or have the same key.

-- The fields of a newcomer, of its plan, and of the plan's rules.
local N_ID, N_PRIORITY, N_DELAY, N_CARD, N_PLAN, N_EXPIRES, N_CALLER, N_LANE, N_BLOCKERS = 1, 2, 3, 4, 5, 6, 7, 8, 9
-- `named` is how a key's record begins: with its text and its task.
local P_DIGEST, P_NAMED, P_FINGERPRINT, P_ITEMS, P_SIZE, P_RULES = 1, 2, 3, 4, 5, 6
local R_TABLE, R_WINDOW, R_WAIT, R_MAX_WAIT, R_MAX_ITEMS, R_STRICT, R_FORCED = 1, 2, 3, 4, 5, 6, 7
local NEWCOMERS, NEWCOMER, PLANNED, KEY_PLANNED = '>I4B', '>c16i4I8I4I4I4I2', '>I2Bc0I2c0Bc0I4I4', '>I2Bc0I2c0'
local NOBODY = {}

local read_shared, read_newcomers
do
  local function next_newcomer(text, at, rules, lanes)
    local id, priority, delay, plan_size, card_size, more_size, lane, card_at, rule
    id, priority, delay, plan_size, card_size, more_size, lane, at = unpack_bytes(NEWCOMER, text, at)
    local plan, digest, named, fingerprint, items, size = false
    if plan_size > 0 then
      rule, digest, named, fingerprint, items, size = unpack_bytes(PLANNED, text, at)
      plan = { digest, named, fingerprint, items, size, rules[rule] }
    end
    card_at = at + plan_size
    at = card_at + card_size
    local card, more = sub(text, card_at, at - 1), more_size > 0 and unpack_record(sub(text, at, at + more_size - 1)) or NOBODY
    return { id, priority, delay, card, plan, more[1], more[2], lane > 0 and lanes[lane], more[3] }, at + more_size
  end

  -- The rules and the lanes of a text, where its first newcomer begins, and whether all of them differ.
  function read_shared(text)
    local size, differ, at = unpack_bytes(NEWCOMERS, text)
    local shared = size > 0 and unpack_record(sub(text, at, at + size - 1)) or NOBODY
    return shared[1], shared[2], at + size, differ == 1
  end

  -- The newcomers of a text, from a place on.
  function read_newcomers(text, rules, lanes, at)
    local jobs, number = {}, 0
    while at <= #text do
      number = number + 1
      jobs[number], at = next_newcomer(text, at, rules, lanes)
    end
    return jobs
  end
end
local function read_newcomer(text)
  local rules, lanes, at = read_shared(text)
  return read_newcomers(text, rules, lanes, at)[1]
end

-- What is in a newcomer's card, without reading all of it.
local function task_of(job)
  local at, options_at = card_parts(job[N_CARD])
  return sub(job[N_CARD], at, options_at - 1)
end
local function options_of(job)
  local _, options_at, key_at = card_parts(job[N_CARD])
  return key_at > options_at and sub(job[N_CARD], options_at, key_at - 1)
end
local function payload_of(job) return sub(job[N_CARD], (select(6, card_parts(job[N_CARD])))) end
-- A card with a newcomer's payload in place of its own; of what goes with that, few cards have more than the mark.
local function with_payload(card, newcomer, fingerprint, items, size)
  local _, _, _, fingerprint_at, more_at, payload_at = card_parts(card)
  local _, _, _, _, own_more_at, own_payload_at = card_parts(newcomer)
  local more = sub(card, more_at, payload_at - 1)
  if more ~= sub(newcomer, own_more_at, own_payload_at - 1) then
    local fields = more ~= '' and unpack_record(more) or { false }
    fields[ITEMS - FINGERPRINT], fields[SIZE - FINGERPRINT] = items, size > 0 and size
    more = pack(fields)
  end
  return sub(card, 1, 12) .. pack_bytes('>BI4', #fingerprint, #more) .. sub(card, 18, fingerprint_at - 1) .. fingerprint .. more
    .. sub(newcomer, own_payload_at)
end
local function payload_size(job)
  local plan = job[N_PLAN]
  if plan and plan[P_SIZE] > 0 then return plan[P_SIZE] end
  return #job[N_CARD] + 1 - select(6, card_parts(job[N_CARD]))
end
