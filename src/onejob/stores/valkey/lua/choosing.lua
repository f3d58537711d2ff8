-- choosing: which jobs match a filter, as far as that can be told without looking into what they hold: who asked does that.
-- They are given by their numbers and when they were accepted; or only counted.

-- The fields of a choice. What is false does not count.
local BY_STATES, BY_IDS, BY_CHAINS, BY_TASKS, BY_KEYS, BY_LANES, BY_ORIGINS = 1, 2, 3, 4, 5, 6, 7
local ACCEPTED_BY, ACCEPTED_AFTER, ENDED_BY, PARTS = 8, 9, 10, 11

local chosen, chosen_number
on_begin(function() chosen, chosen_number = {}, 0 end)

local begins, choose
do
  -- True if an id has one of these beginnings: whole bytes, and half of another or false.
  function begins(id, beginnings)
    for _, one in ipairs(beginnings) do
      local size, half = #one[1], one[2]
      if string.sub(id, 1, size) == one[1] and not (half and math.floor(string.byte(id, size + 1) / 16) ~= half) then return true end
    end
    return false
  end
  local function among(text, texts)
    for _, one in ipairs(texts) do
      if text == one then return true end
    end
    return false
  end
  local function like(text, patterns)
    for _, one in ipairs(patterns) do
      if text and string.find(text, one) then return true end
    end
    return false
  end

  local function head_fits(id, head, choice)
    return not (choice[BY_IDS] and not begins(id, choice[BY_IDS]))
      and not (choice[BY_CHAINS] and not begins(head[CHAIN] or id, choice[BY_CHAINS]))
      and not (choice[BY_LANES] and not among(head[LANE], choice[BY_LANES]))
      and not (choice[ENDED_BY] and not (head[ENDED] and head[ENDED] <= choice[ENDED_BY]))
  end
  local function rest_fits(head, card, choice)
    return not (choice[BY_TASKS] and not like(card[TASK], choice[BY_TASKS]))
      and not (choice[BY_KEYS] and not among(card[KEY], choice[BY_KEYS]))
      and not (choice[BY_ORIGINS] and not like(card[ORIGIN_QUEUE], choice[BY_ORIGINS]))
      and not (choice[ACCEPTED_BY] and head[ACCEPTED] > choice[ACCEPTED_BY])
      and not (choice[ACCEPTED_AFTER] and head[ACCEPTED] <= choice[ACCEPTED_AFTER])
  end

  -- Takes a job if it matches; true if its state does. `parts` are letters: o for its options, p its payload, e its error.
  function choose(id, choice)
    local head = choice[BY_STATES] and head_of(id) or job_of(id)
    if not head or choice[BY_STATES] and not string.find(choice[BY_STATES], head[STATE], 1, true) then return false end
    if not head_fits(id, head, choice) then return true end
    local card, parts = card_of(id), choice[PARTS]
    read_bytes = read_bytes + #card[PAYLOAD]
    if not rest_fits(head, card, choice) then return true end
    chosen_number = chosen_number + 1
    if parts then
      chosen[chosen_number] = { id, head[SEQ], head[ACCEPTED], string.find(parts, 'o', 1, true) ~= nil and card[OPTIONS],
        string.find(parts, 'p', 1, true) ~= nil and card[PAYLOAD], string.find(parts, 'e', 1, true) ~= nil and error_of(id) or false }
    end
    return true
  end
end

-- What was taken.
local function choice_made(choice) return choice[PARTS] and chosen or chosen_number end
