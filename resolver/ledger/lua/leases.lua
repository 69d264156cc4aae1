-- Leases: which commits end by themselves, and when. A commit with a lease is prepared (field in PREPARED) or
-- assumed; one without is confirmed. PENDING has the UIDs of the commit, LEASES its deadline.
--
-- Deadlines are in lease time, in milliseconds. It follows the server's clock, goes on by at most
-- MOST_AHEAD_MS from one reaping to the next, and never goes back: a clock that jumps ends no lease and
-- prolongs none.

local leases = {}

local MOST_AHEAD_MS = 2000

-- Lease time now, and the server's clock, both in milliseconds.
function leases.now()
  local time = call('TIME')
  local clock = time[1] * 1000 + floor(time[2] / 1000)
  if not meta[6] then
    return clock, clock
  end
  return meta[6] + math.max(0, math.min(clock - meta[7], MOST_AHEAD_MS)), clock
end

-- Gives the commit of these UIDs a lease.
function leases.begin(seq, lease_ms, uids)
  local field = string.format('%d', seq)
  call('HSET', PENDING, field, concat(uids))
  call('ZADD', LEASES, string.format('%d', leases.now() + lease_ms), field)
end

-- Ends the lease of a commit. Returns whether it had one.
function leases.finish(field)
  call('ZREM', LEASES, field)
  return call('HDEL', PENDING, field) == 1
end
