-- Raises the low watermarks: from now on proposals below them are refused if rules might concern their
-- pods.
--
-- args  seqs: by shard, u64
--       damaged: rules cannot be read. Takes a seq, so that resolvers that know these rules read them again.
--       Else they would count them as registered, and others as forgotten.

local shards = tonumber(meta[3])
local format = '<' .. rep('I8', shards)
local low_watermarks = {unpack_values(format, meta[5] or rep('\0', 8 * shards))}
local asked = {unpack_values(format, args.seqs)}
for shard = 1, shards do
  low_watermarks[shard] = math.max(low_watermarks[shard], asked[shard])
end
call('HSET', META, 'floors', pack_values(format, unpack(low_watermarks, 1, shards)))
if args.damaged then
  local seq = last_seq + 1
  call('HSET', META, 'rules', string.format('%d', seq))
  publish(seq, {'n', '', 'R', 0, 'a', ''})
end
