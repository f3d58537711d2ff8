-- claim: start up to so many waiting jobs of a queue for a worker, by priority, then due time; a claim is a start.
-- in: worker, limit, lease, until when the worker is known to live, how many more for its stock 
-- out: jobs, how long until time brings more
--! works

locate(KEYS, ARGV)
local ask = unpack_record(ARGV[3])
local said = claim_alone(ask[1], ask[2], ask[3], ask[4])
if said then return said end
forget_all()
open()
return reply(claim(ask[1], ask[2], ask[3], ask[4], ask[5]))
