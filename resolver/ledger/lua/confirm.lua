-- ARGV  2.. seqs of commits (decimal). Their leases end; what they reserved stays. Returns how many were pending.
return call('HDEL', PENDING, unpack(ARGV, 2))
