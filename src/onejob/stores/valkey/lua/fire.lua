-- fire: spend slots, each if its schedule is the one that was read and not paused; its job is on its way with the same
-- write. Who comes second changes nothing.
-- in: id, revision, since, slot, next, job or false, queue · out: 1 for each that won
--! works

local won = {}
for place, firing in ipairs(unpack_record(ARGV[3])) do
  local id, found, job = firing[1], get('s', firing[1]), firing[6] and read_newcomer(firing[6])
  local wins = found and found[S_PAUSED] == 0 and found[S_REVISION] == firing[2] and found[S_SINCE] == firing[3]
  won[place] = wins and 1 or 0
  if wins then
    local record = { unpack(found) }
    record[S_NEXT], record[S_UPDATED], record[S_REVISION] = firing[5], NOW, found[S_REVISION] + 1
    if job then
      record[S_LAST], record[S_JOB], record[S_OUTCOME], record[S_FIRED] = firing[4], job[N_ID], 'created', found[S_FIRED] + 1
      post(firing[7], 'accept', job, id, firing[4])
    end
    put_schedule(record, found)
  end
end
return reply(won)
