-- put_schedules: write records, each if the stored one is the one that was read; 1: if there is none.
-- in: records · out: 1 for each that was written
--! grows

local written = {}
for place, record in ipairs(unpack_record(ARGV[3])) do
  local found = get('s', record[S_ID])
  local fits = record[S_REVISION] == 1 and not found
    or found and found[S_REVISION] == record[S_REVISION] - 1 and found[S_SINCE] == record[S_SINCE]
  written[place] = fits and 1 or 0
  if fits then
    put_schedule(record, found)
    tell('schedules')
  end
end
return reply(written)
