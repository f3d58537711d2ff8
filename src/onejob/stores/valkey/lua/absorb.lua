-- absorb: duplicates that were counted elsewhere since the last time, for keys that are still the same holders'.
-- in: digest, holder, how many, how many of them with other arguments
--! works

local asked, digests, counts = unpack_record(ARGV[3]), {}, {}
for place, one in ipairs(asked) do digests[place] = one[1] end
fetch('k', digests, key_texts)
fetch('n', digests, counts)
for _, one in ipairs(asked) do
  local digest, record = one[1], key_of(one[1])
  if record and record[K_HOLDER] == one[2] then
    local counted = counts[digest] and unpack_record(counts[digest]) or { 0, 0 }
    counts[digest] = pack({ counted[1] + one[3], counted[2] + one[4] })
    write('n' .. digest, counts[digest])
  end
end
return reply(false)
