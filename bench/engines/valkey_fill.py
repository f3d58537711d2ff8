"""Fills a Valkey store of ours with copies of a job that the store itself wrote, by a script on the store's own parts."""

from __future__ import annotations

import asyncio
from typing import Any

import valkey

from bench.engines import Filling, model
from onejob.stores.valkey.scripts import assembled

AT_ONCE = 2_000
_QUEUE = "default"
_KEYS = [f"{{onejob:{_QUEUE}}}:data", f"{{onejob:{_QUEUE}}}:index"]
_SCRIPT = """
--! works

local filling, first, count = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

local function copy_of(record)
  local copy = {}
  for field, value in pairs(record) do copy[field] = value end
  return setmetatable(copy, getmetatable(record))
end

-- Ids grow, as those of jobs do, but are older than any that is made now.
local function identity(n) return '\\1\\0\\0\\0' .. struct.pack('>I4', n) .. string.sub(redis.sha1hex(n), 1, 8) end

local function copy_key(model)
  for n = first, first + count - 1 do
    local record, digest = copy_of(model), string.sub(redis.sha1hex(n), 1, 16)
    record[K_HOLDER] = identity(n)
    add_later('K' .. instant(record[K_SINCE]) .. digest)
    save_key(digest, record)
  end
end

local function copy_job(id)
  local head = job_of(id)
  local plan = head[LANE] and filling == 'lanes' and lane_plan(head[LANE])
  for n = first, first + count - 1 do
    local copy = copy_of(head)
    if plan then
      copy[LANE] = string.format('lane-%08x', n)
      set('l', copy[LANE], plan)
    end
    copy[SEQ] = next_number()
    create(identity(n), copy, card_texts[id])
  end
end

if filling == 'keys' then
  copy_key(key_of(string.sub(range('K', 1)[1], 8)))
else
  copy_job(string.sub(ARGV[6], -16))
end
return reply(0)
"""


def fill(url: str, filling: Filling, count: int) -> None:
    """Make the model and copy it `count` times."""
    asyncio.run(model.make(url, filling))
    with valkey.Valkey.from_url(url) as client:
        script = client.register_script(assembled(_SCRIPT))
        # The newest job that there is; of a key, none is left.
        found: Any = client.execute_command("ZREVRANGEBYLEX", _KEYS[1], "(P", "[O", "LIMIT", 0, 1)
        newest = found[0] if found else b""
        for first in range(1, count + 1, AT_ONCE):
            script(_KEYS, [_QUEUE, "", filling, first, min(AT_ONCE, count + 1 - first), newest])
