-- schedules: those on record, in no order, some at a time, and one of them perhaps twice; with ids, those of them that are.
-- in: ids or false, where to go on · out: records, and where to go on or false
--! reads

local PAGE = /* portion */

local asked, found = unpack_record(ARGV[3]), {}
local ids, cursor = asked[1], false
if not ids then
  local page = call('HSCAN', DATA, asked[2], 'MATCH', 's*', 'COUNT', PAGE)
  ids, cursor = {}, page[1] ~= '0' and page[1]
  for place = 1, #page[2], 2 do ids[#ids + 1] = string.sub(page[2][place], 2) end
end
for _, id in ipairs(ids) do
  local record = get('s', id)
  if record then found[#found + 1] = record end
end
return reply({ found, cursor })
