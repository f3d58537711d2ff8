-- schedules: those on record, in no order; with ids, those of them that are.
-- in: ids or false · out: records
--! reads

local ids, found = unpack_record(ARGV[3])[1], {}
if not ids then
  ids = {}
  local cursor = '0'
  repeat
    local page = call('HSCAN', DATA, cursor, 'MATCH', 's*', 'COUNT', 1000)
    cursor = page[1]
    for place = 1, #page[2], 2 do ids[#ids + 1] = string.sub(page[2][place], 2) end
  until cursor == '0'
end
for _, id in ipairs(ids) do
  local record = get('s', id)
  if record then found[#found + 1] = record end
end
return reply(found)
