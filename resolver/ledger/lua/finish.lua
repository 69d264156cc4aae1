-- Puts loaded keys in place, and the ledger's epoch: from now on the shard is whole.
--
-- KEYS  after the shard's own keys the loaded ones, one for each of `replaced`
-- args  replaced: the numbers of the keys that the loaded ones replace   new_epoch   seq   next_index
--       free: indexes without a node, 4 bytes each   low_watermarks: u64 by shard
--       lease_ms: of assumed commits   format: of what was loaded (an emptied Redis has forgotten it)
for i = 1, #args.replaced do
  local key, loaded = KEYS[args.replaced[i]], KEYS[#KEYS - #args.replaced + i]
  unlink(key)
  if call('EXISTS', loaded) == 1 then
    call('RENAME', loaded, key)
  end
end
-- The accounts have no node in quarantine, and what exists is counted in full.
unlink(FEED, QUARANTINE, LEASES, VERSIONS, NONCES, REMOVED, MOVED, TERMINATING, NOMINATED, DAMAGED)
for _, field in ipairs(call('HKEYS', PENDING)) do
  call('ZADD', LEASES, string.format('%d', leases.now() + args.lease_ms), field)
end
call(
  'HMSET', META, 'epoch', args.new_epoch, 'next_index', args.next_index, 'free', args.free,
  'floors', args.low_watermarks, 'format', args.format
)
call('HDEL', META, 'rules')
-- A feed reader sees a gap in the sequence numbers, and takes a snapshot.
publish(args.seq, {'n', '', 'R', 0, 'a', ''})
