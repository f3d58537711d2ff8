-- absorb: duplicates that were counted elsewhere since the last time, for keys that are still the same holders'.
-- in: digest, holder, how many, how many of them with other arguments
--! records opening

for _, one in ipairs(unpack_record(ARGV[3])) do
  local record = get('k', one[1])
  if record and record[K_HOLDER] == one[2] then
    local counts = get('n', one[1]) or { 0, 0 }
    set('n', one[1], { counts[1] + one[3], counts[2] + one[4] })
  end
end
return reply(false)
