-- limits: those of a whole queue.
-- out: concurrency, max, per and whether it is paused; false if there are none
--! reads

local found = get('m', 'limits')
return reply(found and { found[Q_CONCURRENCY], found[Q_MAX], found[Q_PER], found[Q_PAUSED] and 1 or 0 } or false)
