-- blockers: the chains that a job waits or waited for, in the order given when it was made.
-- in: id · out: chain and its queue, each
--! reads

return reply(get('b', unpack_record(ARGV[3])[1]) or {})
