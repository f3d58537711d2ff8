-- ending: what the end of a job entails, and what queues tell each other. A queue acts on its own jobs alone. What
-- concerns another is a message: for the queue itself it is taken at once, for another it is numbered and kept until
-- that one has taken it. Messages are taken in their order and once: who takes them knows the last number.

-- Of what one thing entails for many, one call does so much; the rest goes with the next delivery.
local AT_ONCE = 200

local STRANDED, EXPIRED = '/* stranded */', '/* expired */'

local take, taken, copied = {}, 0, 0
local put_out, post, tell_chains, readable, stranded, place_queued, let_go, after_end, finish, bury, end_queued, standing, wait_for,
  expire_overdue
do
  local pending, working
  on_begin(function() pending, working, taken, copied = {}, false, 0, 0 end)

  do
    -- The number given last to a message for a queue, and where it stands among what is to be written.
    local numbers, places
    on_begin(function() numbers, places = emptied(numbers), emptied(places) end)

    -- Puts a message into the outbox. Numbers grow with the server's time: those of a queue that was lost, or that fell back when
    -- another node took over, are hardly ever given again. Where they are, as that node's clock is behind, `ack` finds out.
    function put_out(queue, message)
      local n, field, place = numbers[queue], 'mo' .. queue, places[queue]
      if not n then
        local time = call('TIME')
        n = math.max(tonumber(call('HGET', DATA, field) or nil) or 0, time[1] * 100000 + math.floor(time[2] / 10) - 1)
      end
      n = n + 1
      numbers[queue] = n
      if place and written[place] == field then
        written[place + 1] = string.format('%.0f', n)
      else
        places[queue] = writes + 1
        write(field, string.format('%.0f', n))
      end
      local member = 'o' .. queue .. '\0' .. number(n)
      write(member, pack(message))
      add_later(member)
    end
  end

  -- Takes the messages of this queue to itself. A loop: lines of those who wait for each other can be long.
  local function take_pending()
    working = true
    while #pending > 0 do
      local message = table.remove(pending, 1)
      take[message[1]](unpack(message, 2))
    end
    working = false
  end

  -- Tells a queue something: `kind` is a function of `take`, the rest its arguments. What leads from job to job through a long chain
  -- goes on with the next delivery after a while.
  function post(queue, kind, ...)
    taken = taken + 1
    if queue ~= QUEUE or taken > 10 * AT_ONCE then return put_out(queue, { kind, ... }) end
    if working then
      pending[#pending + 1] = { kind, ... }
    else
      working = true
      take[kind](...)
      take_pending()
    end
  end

  -- Leaves the rest of something long to the next delivery.
  local function post_later(kind, ...) put_out(QUEUE, { kind, ... }) end

  -- Tells many chains, { chain, queue } each, something about a job of this queue.
  function tell_chains(kind, id, chains)
    local rest = {}
    for place, chain in ipairs(chains) do
      if place <= AT_ONCE then
        post(chain[2], kind, chain[1], id, QUEUE)
      else
        rest[place - AT_ONCE] = chain
      end
    end
    if rest[1] then post_later('tell_chains', kind, id, rest) end
  end
  take.tell_chains = tell_chains

  function readable(id)
    local hex = string.gsub(id, '.', function(c) return string.format('%02x', string.byte(c)) end)
    return string.sub(hex, 1, 8) .. '-' .. string.sub(hex, 9, 12) .. '-' .. string.sub(hex, 13, 16) .. '-'
      .. string.sub(hex, 17, 20) .. '-' .. string.sub(hex, 21)
  end

  -- Why a job fails that waited for a chain which did not complete: as `core.chain.stranded`.
  function stranded(chain, state, error)
    local why = string.format(STRANDED, readable(chain), WORDS[state])
    local line = error and string.match(error, '^[^\n\r]*') or ''
    if line == '' then return why end
    local characters = {}
    for character in string.gmatch(line, '[%z\1-\127\194-\244][\128-\191]*') do
      if #characters == 200 then break end
      characters[#characters + 1] = character
    end
    return why .. ': ' .. table.concat(characters)
  end

  local function is_held_up(id, head) return head[BLOCKERS] > 0 and range_at_once('h' .. id, 1)[1] and true or false end

  -- Where a queued job stands now that nothing else is known to hold it up.
  function place_queued(id)
    local blocked = head_of(id)[FOLLOWS] or is_held_up(id, head_of(id))
    local head = change(id)
    if blocked then
      head[STATE] = BLOCKED
    elseif head[DUE] > NOW then
      head[STATE] = DELAYED
    else
      head[STATE] = head[LANE] and PARKED or WAITING
      tell('work')
    end
    if head[LANE] and head[PLACE] ~= KEEPS_SLOT then head[PLACE] = head[STATE] == PARKED and READY or NOT_READY end
    touch(head[LANE])
  end

  -- Those who follow a chain that is over go on, or follow another one `instead`, some at a time.
  local function let_follow(root, instead)
    local here, elsewhere = range('f' .. root, AT_ONCE), range('g' .. root, AT_ONCE)
    taken = taken + #here
    for place, member in ipairs(here) do here[place] = sub(member, -16) end
    fetch('j', here, head_texts)
    if instead and here[1] then note_followed(instead) end
    for _, id in ipairs(here) do
      change(id)[FOLLOWS] = instead
      place_queued(id)
    end
    for _, member in ipairs(elsewhere) do
      remove(member)
      post(sub(member, 34), 'unfollow', sub(member, 18, 33), root, instead, QUEUE)
    end
    if #here == AT_ONCE or #elsewhere == AT_ONCE then post_later('let_follow', root, instead) end
  end
  -- The rest of them: unless the chain runs again, whose end they then wait for; and by now nobody may follow the other one.
  function take.let_follow(root, instead)
    local head, other = head_of(root), instead and head_of(instead)
    if head and not is_over(head) then return end
    let_follow(root, other and not is_over(other) and instead)
  end

  local function end_key(root, digest, state, instead)
    let_follow(root, instead)
    local record = key_of(digest)
    if not record then return end
    if record[K_FOLLOWS] == root then
      record[K_FOLLOWS] = instead
      save_key(digest, record)
    elseif record[K_HOLDER] == root then
      local till = record[K_FAILED]
      if state == COMPLETED then till = record[K_COMPLETED] end
      -- A holder that never started leaves whom it was waiting for to whoever takes the key next.
      if not record[K_FOLLOWS] and not (till and till > NOW) then
        forget_key(digest, record)
      else
        if record[K_FORGET] then remove('G' .. instant(record[K_FORGET]) .. digest) end
        record[K_ENDED], record[K_ENDED_AT], record[K_FORGET] = state, NOW, till or NOW
        if record[K_FORGET] < LATEST then add('G' .. instant(record[K_FORGET]) .. digest) end
        save_key(digest, record)
      end
    end
  end

  -- Those who wait for a chain that is over are told, some at a time.
  function let_go(root, state, error)
    local waiting = range_at_once('a' .. root, AT_ONCE)
    for _, member in ipairs(waiting) do
      remove(member)
      post(string.sub(member, 34), 'unblock', string.sub(member, 18, 33), root, state, error)
    end
    if #waiting == AT_ONCE then post_later('let_go', root, state, error) end
  end
  take.let_go = let_go

  -- A chain of this queue is over, as its last job is.
  function take.over(root, state, instead, error, at)
    local head = head_of(root)
    tell('done')
    if not head then return end
    if head[NEXT] then
      change(root)
      head[OVER], head[OVER_AT] = state, at
    end
    if head[DIGEST] then end_key(root, head[DIGEST], state, instead) end
    if head[AWAITED] then let_go(root, state, error) end
  end

  local function short(error) return error and string.sub(error, 1, 1000) or false end

  -- Says again how a chain has ended, if it has: its first jobs fell back when another node took over, and were run anew.
  function take.say_end(id)
    local head = head_of(id)
    if not head or not head[ENDED] then return end
    if head[NEXT] then return post(head[NEXT_QUEUE], 'say_end', head[NEXT]) end
    local error = head[STATE] ~= COMPLETED and short(error_of(id))
    post(head[ROOT_QUEUE], 'over', head[CHAIN], head[STATE], false, error, head[ENDED])
  end

  -- Does what the end of a job entails; `instead` is whom it was still waiting for, if it never started.
  function after_end(id, instead)
    local head = head_of(id)
    tell('done')
    touch(head[LANE])
    if head[BLOCKERS] > 0 then -- nothing of what it waited for is needed any more
      call('ZREMRANGEBYLEX', INDEX, '[h' .. id, '(h' .. id .. TOP)
      tell_chains('no_longer', id, get('b', id) or NONE)
    end
    if head[NEXT] then return end
    local error = head[STATE] ~= COMPLETED and short(error_of(id))
    post(head[ROOT_QUEUE] or QUEUE, 'over', head[CHAIN] or id, head[STATE], instead, error, head[ENDED])
  end

  -- Ends a job that is queued, or was running; the caller has checked that it may.
  function finish(id, state, error)
    local head = change(id)
    local instead = head[FOLLOWS]
    head[STATE], head[ENDED], head[UPDATED], head[PLACE], head[FOLLOWS] = state, NOW, NOW, false, false
    if error then set_error(id, error) end
    return instead
  end

  -- A copy of a job that has failed waits in another queue.
  function bury(id, queue, copy)
    local head, card = head_of(id), card_of(id)
    copied = copied + #card[PAYLOAD]
    local options = card[OPTIONS]
    if card[GRAVE] then options = card[GRAVE][2] end
    post(queue, 'bury', copy, card[TASK], card[PAYLOAD], options, head[PRIORITY], card[MAX_CRASHES], card[ITEMS],
      error_of(id), id, QUEUE)
  end
  function take.bury(copy, task, payload, options, priority, max_crashes, items, error, origin, origin_queue)
    if head_of(copy) then return end
    local head = new_head(WAITING, priority, NOW)
    create(copy, head, card_text({ task, payload, options, false, max_crashes, false, false, items, false, false, false, false, origin,
      origin_queue }))
    add_later('d' .. origin_queue .. '\0' .. number(head[SEQ]) .. copy)
    if error then set_error(copy, error) end
    tell('work')
  end

  function end_queued(id, reason)
    local head = head_of(id)
    if not head or not QUEUED[head[STATE]] then return false end
    local error = not error_of(id) and reason
    after_end(id, finish(id, REVOKED, error))
    return true
  end

  -- Fails a job that waits for what will not come.
  local function strand(id, reason)
    local head, card = head_of(id), card_of(id)
    if head[STATE] ~= BLOCKED then return end
    local instead = finish(id, FAILED, reason)
    if card[GRAVE] and card[GRAVE][1] ~= QUEUE then bury(id, card[GRAVE][1], card[GRAVE][3]) end
    after_end(id, instead)
  end

  -- A chain that a job waited for is over.
  function take.unblock(id, chain, state, error)
    local head = head_of(id)
    if not head or call('ZREM', INDEX, 'h' .. id .. chain) == 0 or head[STATE] ~= BLOCKED then return end
    if state ~= COMPLETED and not card_of(id)[RUNS_ANYWAY] then
      strand(id, stranded(chain, state, error))
    elseif not head[FOLLOWS] and not is_held_up(id, head) then
      place_queued(id)
    end
  end

  -- A job of another queue, the last of a chain whose key is here, follows a chain of this queue.
  function take.follow(root, id, queue)
    local head = head_of(root)
    if not head or is_over(head) then return post(queue, 'unfollow', id, root, false, QUEUE) end
    if not head[DIGEST] then know_key(root, '?') end -- so that its end looks for who follows
    note_followed(root)
    add('g' .. root .. id .. queue)
  end
  function take.unfollow(id, root, instead, queue)
    local head = head_of(id)
    if not head or head[FOLLOWS] ~= root then return end
    if instead then note_followed(instead) end
    change(id)[FOLLOWS] = instead
    place_queued(id)
    if instead then post(queue, 'follow', instead, id, QUEUE) end
  end

  -- How a chain of this queue stands: its state, and its error.
  function standing(root)
    local head = head_of(root)
    if not head then return REVOKED, 'it is gone' end
    if head[NEXT] then return head[OVER] or RUNNING, false end
    return head[STATE], head[ENDED] and short(error_of(root))
  end

  -- Somebody waits for a chain of this queue; `last_error` is that of its last job, if who asks has seen it.
  function take.wait(root, id, queue, last_error)
    local state, error = standing(root)
    local name = root .. id .. queue
    if head_of(root) then
      change(root)[AWAITED] = true
      add('A' .. name)
    end
    if QUEUED[state] or state == RUNNING then
      add('a' .. name)
    else
      post(queue, 'unblock', id, root, state, error or last_error)
    end
  end
  function take.no_longer(root, id, queue)
    remove('A' .. root .. id .. queue)
    remove('a' .. root .. id .. queue)
  end

  -- Lets a job, which is blocked, wait for chains: { chain, queue, error } each. Until it waits for all of them, it is held up by itself
  -- and a number, by which the rest is known: who was revived meanwhile waits anew.
  function wait_for(id, chains)
    local some, rest = {}, {}
    for place, chain in ipairs(chains) do
      if place <= AT_ONCE then some[place] = chain else rest[place - AT_ONCE] = chain end
    end
    for _, chain in ipairs(some) do add('h' .. id .. chain[1]) end
    local mark = rest[1] and id .. number(next_number())
    if mark then add('h' .. id .. mark) end
    -- All of them before any is taken: one that failed ends the job, and with it all its waiting.
    local outermost = not working
    working = true
    for _, chain in ipairs(some) do post(chain[2], 'wait', chain[1], id, QUEUE, chain[3] or false) end
    if mark then post_later('wait_for', id, rest, mark) end
    if outermost then take_pending() end
  end
  function take.wait_for(id, chains, mark)
    if not has('h' .. id .. mark) then return end -- it has ended meanwhile
    wait_for(id, chains)
    remove('h' .. id .. mark)
  end

  -- Ends queued jobs whose time to start has passed; how many.
  function expire_overdue(limit)
    local overdue = until_time('X', NOW, limit)
    for _, member in ipairs(overdue) do end_queued(string.sub(member, -16), EXPIRED) end
    return #overdue
  end
end
