-- Makes a shard of the ledger where there is none. Without the prelude: there may be no epoch to compare with.
--
-- KEYS  1 the shard's meta   ARGV  1 a new epoch   2 number of shards
-- Returns the epoch and the number of shards that hold now, and the seq.
if redis.call('HEXISTS', KEYS[1], 'epoch') == 0 then
  redis.call('HMSET', KEYS[1], 'epoch', ARGV[1], 'shards', ARGV[2], 'seq', '0', 'next_index', '0')
end
return redis.call('HMGET', KEYS[1], 'epoch', 'shards', 'seq')
