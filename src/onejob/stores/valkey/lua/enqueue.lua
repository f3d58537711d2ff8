-- enqueue: accept newcomers in order, exactly as if they came one by one; key and job are written together or not at all.
-- in: newcomers · out: an answer each
--! grows

locate(KEYS, ARGV)
local said = accept_alone(ARGV[3])
if said then return said end
forget_all()
local answers, jobs = {}, read_newcomers(ARGV[3])
open_for(jobs)
for place = 1, #jobs do answers[place] = (accept(jobs[place])) end
refresh()
return reply(answers)
