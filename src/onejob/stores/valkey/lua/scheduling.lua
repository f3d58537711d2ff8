-- scheduling: schedules are kept by the store's own desk, a queue without a name and without jobs. A slot that is spent
-- there becomes a message to the queue of its job, and what that queue answers comes back as another.

local S_ID, S_DEFINITION, S_DECLARED, S_PAUSED, S_SINCE, S_NEXT, S_LAST, S_JOB = 1, 2, 3, 4, 5, 6, 7, 8
local S_OUTCOME, S_FIRED, S_UPDATED, S_REVISION = 9, 10, 11, 12

local answers
on_begin(function() answers = {} end)

local function put_schedule(record, former)
  if former and former[S_PAUSED] == 0 then remove('N' .. instant(former[S_NEXT]) .. record[S_ID]) end
  if record[S_PAUSED] == 0 then add('N' .. instant(record[S_NEXT]) .. record[S_ID]) end
  set('s', record[S_ID], record)
end

-- A slot's job comes to its queue.
function take.accept(job, schedule, slot)
  local answer, id, outcome = accept(job)
  answers[#answers + 1] = { schedule, slot, answer }
  post('', 'fired', schedule, slot, id, outcome)
end

-- What became of a slot's job.
function take.fired(schedule, slot, job, outcome)
  local record = get('s', schedule)
  if record and record[S_LAST] == slot then
    record[S_JOB], record[S_OUTCOME] = job, outcome
    set('s', schedule, record)
  end
end
