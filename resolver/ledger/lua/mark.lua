-- Puts a mark in the place of the ledger's epoch: from here on no script touches the shard but those of whoever set the mark.
-- Without the prelude: there may be no epoch to compare with. What is in the shard stays as it is.
--
-- KEYS  1 the shard's meta, then keys that are begun anew
-- ARGV  1 the mark   2 number of shards   3.. what may stand there now: epochs, marks, '' for nothing; '*': whatever it is
-- Returns what stood there before: where it may not, nothing was changed.
local stood = redis.call('HGET', KEYS[1], 'epoch') or ''
for i = 3, #ARGV do
  if ARGV[i] == stood or ARGV[i] == '*' then
    redis.call('HSET', KEYS[1], 'epoch', ARGV[1])
    for _, field in ipairs({'seq', 'next_index'}) do
      redis.call('HSETNX', KEYS[1], field, '0')
    end
    redis.call('HSETNX', KEYS[1], 'shards', ARGV[2])
    for key = 2, #KEYS do
      redis.call('DEL', KEYS[key])
    end
    break
  end
end
return stood
