-- enqueue: accept newcomers in order, exactly as if they came one by one; key and job are written together or not at all.
-- in: newcomers · out: an answer each
--! grows

locate(KEYS, ARGV)
local said = accept_alone(ARGV[3])
if said then return said end
forget_all()
open()
local rules, lanes, at, differ = read_shared(ARGV[3])
local answers = {}
at = accept_together(ARGV[3], at, rules, lanes, differ, answers)
if at then
  flush()
  local jobs, before = read_newcomers(ARGV[3], rules, lanes, at), #answers
  look_for(jobs)
  for place = 1, #jobs do answers[before + place] = (accept(jobs[place])) end
end
refresh()
return reply(answers)
