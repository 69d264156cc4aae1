-- Replaces the ledger's epoch by a recovery tombstone: from now on no script touches the shard but those
-- of the rebuild that set it. The shard's contents stay. Without the prelude, for there may be no epoch to
-- compare with; a dispatcher's term is checked as there.
--
-- KEYS  1 the shard's meta, then keys to delete
-- ARGV  1 the tombstone   2 number of shards   3 the term of a dispatcher (0: not a dispatcher)
--       4.. what may be replaced: epochs, tombstones, '' for nothing; '*': anything
--
-- Returns the epoch or tombstone before. If it may not be replaced, nothing has changed.
local current = redis.call('HGET', KEYS[1], 'epoch') or ''
local term, highest = tonumber(ARGV[3]), tonumber(redis.call('HGET', KEYS[1], 'term') or 0)
if term > 0 and term < highest then
  return redis.error_reply(string.format('SUPERSEDED %d', highest))
end
for i = 4, #ARGV do
  if ARGV[i] == current or ARGV[i] == '*' then
    redis.call('HSET', KEYS[1], 'epoch', ARGV[1])
    if term > highest then
      redis.call('HSET', KEYS[1], 'term', string.format('%d', term))
    end
    for _, field in ipairs({'seq', 'next_index'}) do
      redis.call('HSETNX', KEYS[1], field, '0')
    end
    redis.call('HSETNX', KEYS[1], 'shards', ARGV[2])
    unlink(unpack(KEYS, 2))
    break
  end
end
return current
