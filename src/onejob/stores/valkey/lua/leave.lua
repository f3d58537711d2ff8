-- leave: a worker stopped in good order; jobs that it still runs in this queue become expired at once.
-- in: worker
--! works

drop('w', unpack_record(ARGV[3])[1])
return reply(false)
