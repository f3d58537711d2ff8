-- set_queue: change the limits of a whole queue.
-- in: concurrency (false: as it is, 0: none), rate ('keep', 'drop' or 'set'), max, per, paused ('keep', 'yes' or 'no')
-- out: the limits from now on
--! works

local asked, limits = unpack_record(ARGV[3]), queue_limits()
if asked[1] then limits[Q_CONCURRENCY] = asked[1] > 0 and asked[1] or false end
if asked[2] == 'set' then
  limits[Q_MAX], limits[Q_PER] = asked[3], asked[4]
elseif asked[2] == 'drop' then
  limits[Q_MAX], limits[Q_PER] = false, false
end
if asked[5] ~= 'keep' then limits[Q_PAUSED] = asked[5] == 'yes' end
if not limits[Q_MAX] then call('ZREMRANGEBYLEX', INDEX, '[S\0', '(S\0' .. TOP) end
if limits[Q_CONCURRENCY] or limits[Q_MAX] or limits[Q_PAUSED] then
  set('m', 'limits', limits)
else
  drop('m', 'limits')
end
tell('work')
return reply({ limits[Q_CONCURRENCY], limits[Q_MAX], limits[Q_PER], limits[Q_PAUSED] and 1 or 0 })
