-- dropping: chains that are over go as a whole; memory of a key outlives them.

local dropped
on_begin(function() dropped = 0 end)

-- A job of a chain that is over goes, and those behind it.
function take.drop(id)
  while true do
    local head = head_of(id)
    if not head or not head[ENDED] then return end
    local next_id, next_queue = head[NEXT], head[NEXT_QUEUE]
    local record = head[DIGEST] and key_of(head[DIGEST])
    if record and record[K_HOLDER] == id then
      record[K_FINGERPRINT] = card_of(id)[FINGERPRINT]
      add_later('K' .. instant(record[K_SINCE]) .. head[DIGEST])
      save_key(head[DIGEST], record)
    end
    if head[AWAITED] then
      let_go(id, REVOKED, 'it is gone')
      call('ZREMRANGEBYLEX', INDEX, '[A' .. id, '(A' .. id .. TOP)
    end
    erase(id)
    dropped = dropped + 1
    if not next_id then return end
    if next_queue ~= QUEUE or dropped % AT_ONCE == 0 then return put_out(next_queue, { 'drop', next_id }) end
    id = next_id
  end
end

-- A dead letter whose original is to run again goes, unless it runs itself. The message comes from where the letter came
-- from: should the original fail again, its next letter comes after.
function take.unbury(copy)
  end_queued(copy, 'its original was retried')
  local head = head_of(copy)
  if head and is_over(head) then post(QUEUE, 'drop', copy) end
end

-- An ended job runs again under its old id, with a fresh budget and its old window. `queue` is that of its chain's key,
-- `letter` its dead letter, if it has one: id and queue.
function take.revive(id, follows, chains, queue, letter)
  local head = change(id)
  if not head then return end
  if head[STATE] ~= FAILED and head[STATE] ~= REVOKED then return end
  local card = card_of(id)
  for field = FAILURES, MISSES do head[field] = 0 end
  if follows then note_followed(follows) end
  head[STARTED], head[ENDED], head[EXPIRES], head[FOLLOWS] = false, false, false, follows
  head[DUE], head[UPDATED], head[ABORTING] = NOW, NOW, 0
  call('HDEL', DATA, 'r' .. id)
  local lane = head[LANE]
  if lane then
    head[PLACE] = NOT_READY
    if not lane_plan(lane) then
      local brought = card[LANE_PLAN] or { 1, false, false, 0 }
      put_lane(lane, brought[1], brought[2], brought[3], brought[4])
    end
  end
  for place = 1, math.min(#chains, 1) do add('h' .. id .. chains[place][1]) end
  place_queued(id)
  tell('work')
  if follows and queue ~= QUEUE then post(queue, 'follow', follows, id, QUEUE) end
  tell_chains('reads_again', id, get('b', id) or NONE)
  wait_for(id, chains)
  if letter then post(letter[2], 'unbury', letter[1]) end
end

-- A job that runs again will read what a chain of this queue returned.
function take.reads_again(root, id, queue)
  local head = change(root)
  if head then
    head[AWAITED] = true
    add('A' .. root .. id .. queue)
  end
end
