-- Raises the low watermarks: from now on proposals below them are refused if rules might concern their
-- pods.
--
-- args  seqs: by shard, u64

local shards = tonumber(meta[3])
local format = '<' .. rep('I8', shards)
local low_watermarks = {unpack_values(format, meta[5] or rep('\0', 8 * shards))}
local asked = {unpack_values(format, args.seqs)}
for shard = 1, shards do
  low_watermarks[shard] = math.max(low_watermarks[shard], asked[shard])
end
call('HSET', META, 'floors', pack_values(format, unpack(low_watermarks, 1, shards)))
