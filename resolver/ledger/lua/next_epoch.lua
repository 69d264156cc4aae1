-- Counts worker epochs. Without the prelude: the count is not part of a shard.
--
-- KEYS  1 the last epoch   2 hash: epoch -> worker, of the latest
-- ARGV  1 the worker that gets the epoch, '' for nobody   2 it is above this   3 how many to remember in the hash
--
-- Redis may have lost the count with the rest. Workers with epochs of the lost ledger may be alive, and a count
-- from 1 would come to their epochs again. So where there is none, it begins at the server's time in
-- microseconds: grants are rarer than that, so every older count is below.
--
-- Returns the epoch.
local last = redis.call('GET', KEYS[1])
if not last then
  local time = redis.call('TIME')
  last = time[1] * 1000000 + time[2]
end
local epoch = math.max(tonumber(last), tonumber(ARGV[2])) + 1
redis.call('SET', KEYS[1], string.format('%d', epoch))
if ARGV[1] ~= '' then
  redis.call('HSET', KEYS[2], string.format('%d', epoch), ARGV[1])
  redis.call('HDEL', KEYS[2], string.format('%d', epoch - ARGV[3]))
end
return epoch
