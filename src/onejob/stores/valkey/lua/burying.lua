-- burying: dead letters of a queue by where their originals failed.

-- The queues in which originals failed; the one that is asked for, if one is.
local function origins_of(origin)
  if origin then return { origin } end
  local found, from = {}, '[d'
  while true do
    local member = call('ZRANGEBYLEX', INDEX, from, '(d' .. TOP, 'LIMIT', 0, 1)[1]
    if not member then return found end
    found[#found + 1] = string.sub(member, 2, -24)
    from = '[d' .. found[#found] .. '\1'
  end
end
