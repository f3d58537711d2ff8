-- key: these keys, as many as are here and one call can give, each with its holder.
-- in: digests · out: for each false, or text, task, generation, absorbed, of those with other arguments, when it ended, and
-- the holder: id, state, since, until when it is remembered if it completed and if it failed, accepted, due, attempt,
-- priority, options, expires, follows, fingerprint, items, size, calls, gone, lane
--! reads

local found = {}
for place, digest in ipairs(unpack_record(ARGV[3])) do
  local record, counts = key_of(digest), get('n', digest) or { 0, 0 }
  local holder = record and holder_of(digest, true)
  found[place] = holder and { record[K_TEXT], record[K_TASK], record[K_GENERATION], counts[1], counts[2], record[K_ENDED_AT],
    { holder.id, holder.state, holder.since, holder.completed_until, holder.failed_until, holder.accepted, holder.due,
      holder.attempt, holder.priority, holder.options, holder.expires, holder.follows, holder.fingerprint, holder.items,
      holder.size, holder.calls, holder.gone and 1 or 0, holder.lane } } or false
  read_bytes = read_bytes + (holder and holder.size or 0)
  if read_enough() then break end
end
return reply(found)
