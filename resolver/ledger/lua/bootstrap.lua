-- Creates a shard of the ledger if there is none, and brings one of an older format forward. Without the
-- prelude: there may be no epoch to compare with.
--
-- KEYS  the shard's keys, as in prelude.lua
-- ARGV  1 a new epoch   2 number of shards   3 the format that this release writes
--
-- Returns the epoch and the number of shards in force, the seq, and the format.
--
-- Format 1 (releases 0.1 and 0.2, without a number): a record in PENDING begins with its deadline, 8 bytes,
-- in milliseconds by the server's clock. There were no nonces, no leases in a set, no resource versions, and
-- removed nodes were never forgotten.
local META, SPECS, NAMES, PENDING, LEASES, REMOVED = KEYS[1], KEYS[4], KEYS[5], KEYS[7], KEYS[18], KEYS[21]
if redis.call('HEXISTS', META, 'epoch') == 0 then
  redis.call(
    'HMSET', META, 'epoch', ARGV[1], 'shards', ARGV[2], 'seq', '0', 'next_index', '0', 'format', ARGV[3]
  )
elseif redis.call('HEXISTS', META, 'format') == 0 then
  local pending = redis.call('HGETALL', PENDING)
  for i = 2, #pending, 2 do  -- before anything is written: an error would leave the others brought forward
    if #pending[i] < 8 then
      return redis.error_reply('DAMAGED ' .. PENDING .. ' has a record without a deadline')
    end
  end
  for i = 1, #pending, 2 do
    local deadline = string.format('%d', (struct.unpack('<I8', pending[i + 1])))
    redis.call('ZADD', LEASES, deadline, pending[i])
    redis.call('HSET', PENDING, pending[i], pending[i + 1]:sub(9))
  end
  local names = redis.call('HGETALL', NAMES)
  for i = 1, #names, 2 do
    if redis.call('HEXISTS', SPECS, names[i + 1]) == 0 then
      redis.call('HSET', REMOVED, names[i + 1], names[i])
    end
  end
  redis.call('HSET', META, 'format', ARGV[3])
end
return redis.call('HMGET', META, 'epoch', 'shards', 'seq', 'format')
