-- Counts worker epochs. Without the prelude: the count is not part of a shard.
--
-- KEYS  1 the last epoch   2 hash: epoch -> worker, of the latest
-- ARGV  1 the worker that gets the epoch, '' for nobody   2 it is above this
--       3 how many to remember in the hash
--
-- Redis may have lost the count, or the end of it, with the rest or alone. Workers with epochs from then may
-- be alive, and a mere count would come to their epochs again. So an epoch is at least the server's time in
-- microseconds: grants are rarer than that, so every one before is below. A clock that went back does no
-- harm: then the count goes on one by one. Counts of older releases, which began at 0, stay as small as they
-- are.
--
-- Returns the epoch.
local BY_TIME = 1000000000000000 -- of September 2001; no mere count comes this far

local epoch = math.max(tonumber(redis.call('GET', KEYS[1]) or BY_TIME), tonumber(ARGV[2])) + 1
if epoch > BY_TIME then
  local time = redis.call('TIME')
  epoch = math.max(epoch, time[1] * 1000000 + time[2])
end
redis.call('SET', KEYS[1], string.format('%d', epoch))
if ARGV[1] == '' then
  return epoch
end
redis.call('HSET', KEYS[2], string.format('%d', epoch), ARGV[1])
local kept = tonumber(ARGV[3])
if redis.call('HLEN', KEYS[2]) > 1.1 * kept then
  local epochs = redis.call('HKEYS', KEYS[2])
  for i = 1, #epochs do
    epochs[i] = tonumber(epochs[i])
  end
  table.sort(epochs)
  for i = 1, #epochs - kept do
    redis.call('HDEL', KEYS[2], string.format('%d', epochs[i]))
  end
end
return epoch
