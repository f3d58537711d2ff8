-- unregister: workers that stopped in good order, or died long ago, are no longer known.
-- in: ids
--! works

for _, id in ipairs(unpack_record(ARGV[3])[1]) do
  remove('U' .. id)
  drop('u', id)
end
return reply(false)
