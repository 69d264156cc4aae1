-- Forgets those of some stamps that nobody can have missed any more.
--
-- ARGV  2 fields (MessagePack array)
-- Returns how many. The floors of this shard, the first, are those of all.

local shards, forgotten = tonumber(meta[3]), 0
local floors = {unpack_values('<' .. rep('I8', shards), meta[5] or rep('\0', 8 * shards))}
for _, field in ipairs(cmsgpack.unpack(ARGV[2])) do
  local record = call('HGET', STAMPS, field)
  local stamp, missable = record and {unpack_values('<' .. rep('I8I8I8', shards), record)}, false
  for shard = 1, record and shards or 0 do
    missable = missable or math.max(stamp[3 * shard - 2], stamp[3 * shard]) > floors[shard]
  end
  if record and not missable then
    call('HDEL', STAMPS, field)
    forgotten = forgotten + 1
  end
end
return forgotten
