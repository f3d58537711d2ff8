-- lane: one lane of a queue, or false if it is not in use.
-- in: its key · out: key, concurrency, max, per, hold, holders, taken, ready, head, opens
--! reads

return reply(view(unpack_record(ARGV[3])[1]))
