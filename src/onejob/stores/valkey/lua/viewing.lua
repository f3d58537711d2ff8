-- viewing: a lane as observers see it, which changes nothing.

local HOLDERS, SORTED = 100, 500

local comes_before, view
do
  -- By bytes, as the index is; Lua compares texts by the server's language.
  function comes_before(one, other)
    for at = 1, math.min(#one, #other) do
      local byte, other_byte = string.byte(one, at), string.byte(other, at)
      if byte ~= other_byte then return byte < other_byte end
    end
    return #one < #other
  end

  -- The job that comes first; in order of acceptance its number decides, which stands before the id, otherwise its rank.
  local function first_of(members, is_ordered)
    local best
    for _, member in ipairs(members) do
      local place = string.sub(member, is_ordered and -22 or -32)
      if not best or comes_before(place, best) then best = place end
    end
    return best and string.sub(best, -16)
  end

  -- Whose turn is next: first those who kept a slot.
  local function head_of_lane(name, is_ordered)
    local kept = range('H' .. name, is_ordered and -1 or 1)
    if kept[1] then return first_of(kept, is_ordered) end
    local turns = range('y' .. name, is_ordered and -1 or 1)
    local ready = range((is_ordered and 't' or 'q') .. name, 1)[1]
    if ready then turns[#turns + 1] = ready end
    return first_of(turns, is_ordered)
  end

  -- The first of those who take slots: they run, or kept theirs over a retry.
  local function holders_of(name)
    local found = {}
    for _, member in ipairs(range('s' .. name, SORTED)) do
      local id = string.sub(member, -16)
      local head = head_of(id)
      if head[PLACE] == KEEPS_SLOT or head[STATE] == RUNNING then found[#found + 1] = id end
    end
    table.sort(found, function(one, other) return head_of(one)[SEQ] < head_of(other)[SEQ] end)
    return { unpack(found, 1, math.min(#found, HOLDERS)) }
  end

  local function is_live(name)
    return range('s' .. name, 1)[1] or range('t' .. name, 1)[1] or range('v' .. name, 1)[1]
  end
  local function counts_starts(name, plan)
    local latest = plan[L_PER] and last('S' .. name, 1)[1]
    return latest and read_number(latest, #name + 2) > NOW - plan[L_PER]
  end

  -- Limits, who takes slots, how many, how many are ready, whose turn is next, and when the rate opens; false if not in use.
  function view(lane)
    local plan, name = get('l', lane), lane .. '\0'
    if not plan or not (is_live(name) or counts_starts(name, plan)) then return false end
    local turns = count('y' .. name)
    local ready = count('t' .. name) + count('H' .. name) + turns
    return { lane, plan[L_CONCURRENCY], plan[L_MAX], plan[L_PER], plan[L_HOLD], holders_of(name), count('s' .. name) - turns, ready,
      head_of_lane(name, plan[L_CONCURRENCY] == 1) or false, ready > 0 and plan[L_OPENS] or false }
  end
end
