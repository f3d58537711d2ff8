-- enqueue: accept newcomers in order, exactly as if they came one by one; key and job are written together or not at all.
-- in: newcomers · out: an answer each
--! grows

local answers, jobs = {}, read_newcomers(ARGV[3])
open_for(jobs)
for place = 1, #jobs do answers[place] = (accept(jobs[place])) end
refresh()
return reply(answers)
