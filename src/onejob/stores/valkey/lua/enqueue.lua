-- enqueue: accept newcomers in order, exactly as if they came one by one; key and job are written together or not at all.
-- in: newcomers · out: an answer each
--! grows records opening judge lanes ending making accepting

local answers = {}
for place, job in ipairs(unpack_record(ARGV[3])) do answers[place] = accept(job) end
refresh()
return reply(answers)
