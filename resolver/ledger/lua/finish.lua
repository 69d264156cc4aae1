-- Puts in place what was loaded, and with it the ledger's epoch: the shard is whole from here on.
--
-- KEYS  after the shard's own those loaded, one for each of ARGV 7..
-- ARGV  2 the epoch   3 the seq   4 the next node's number   5 feed window   6 floors: u64 by shard
--       7.. which of the shard's keys each replaces
for i = 7, #ARGV do
  local key, loaded = KEYS[tonumber(ARGV[i])], KEYS[#KEYS - #ARGV + i]
  call('DEL', key)
  if call('EXISTS', loaded) == 1 then
    call('RENAME', loaded, key)
  end
end
call('DEL', FEED, KEYS[17])  -- accounts are as if no node had been in quarantine
call('HMSET', META, 'epoch', ARGV[2], 'next_index', ARGV[4], 'floors', ARGV[6])
call('HDEL', META, 'rules')
-- Whoever reads the feed sees a number that does not follow on his own, and takes a snapshot.
publish(tonumber(ARGV[3]), ARGV[5], {'n', '', 'R', 0, 'a', ''})
