-- From here on proposals made in ignorance of the floors are refused, where rules might see their pods.
--
-- ARGV  2 by shard, a seq: u64
-- Returns nothing. Floors only rise.

local shards = tonumber(meta[3])
local format = '<' .. rep('I8', shards)
local floors = {unpack_values(format, meta[5] or rep('\0', 8 * shards))}
local asked = {unpack_values(format, ARGV[2])}
for shard = 1, shards do
  floors[shard] = math.max(floors[shard], asked[shard])
end
call('HSET', META, 'floors', pack_values(format, unpack(floors, 1, shards)))
