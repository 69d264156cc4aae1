-- Releases what expired commits still hold, in order of their deadlines, by lease time, which goes on here.
-- While there is no lease, it goes on every IDLE_MS only: an idle shard is not written to each second.
--
-- args  most: the number of pods after which it stops
--
-- Returns the number of released UIDs, and 1 if more commits may be expired (call again), else 0, and the
-- seq of the last change that was made here; then the commits of which a record was damaged, and the number
-- of moves that left something on other shards.

-- Between two steps of lease time while there is no lease. A lease that begins meanwhile lasts up to one
-- reaping longer. An audit tells of leases that nobody ends after a longer time.
local IDLE_MS = 5000

local now, clock = leases.now()
local since = clock - tonumber(meta[7] or 0)
if since < 0 or since >= IDLE_MS or call('ZCARD', LEASES) > 0 then
  call('HMSET', META, 'lease_time', string.format('%d', now), 'lease_seen', string.format('%d', clock))
end
local expired = call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, 100)
local uids, seqs, most, ended, over, damaged = {}, {}, args.most, 0, {}, {}
while ended < #expired and #uids < most do
  ended = ended + 1
  local field = expired[ended]
  local listed, seq = call('HGET', PENDING, field), pack_values('<I8', tonumber(field) or 0)
  if listed and (listed == '' or #listed % UID_BYTES > 0) then
    -- The list was damaged. Without it, the end of the lease would confirm the pods: the commit has none
    -- until a repair, which goes by the reservations.
    call('ZREM', LEASES, field)
    damaged[#damaged + 1] = field
  else
    over[#over + 1] = field
    if not listed then
      damaged[#damaged + 1] = field  -- a lease of nothing
    end
    for at = 1, listed and #listed or 0, UID_BYTES do
      uids[#uids + 1], seqs[#seqs + 1] = listed:sub(at, at + UID_BYTES - 1), seq
    end
  end
end
-- A pod may have been released and placed again: only what these commits reserved is released. Leases end
-- after that: if a record cannot be read, nothing has changed.
local released, miscounted = release_pods(uids, concat(seqs), nil, false, nil, over)
for i = 1, #miscounted do
  damaged[#damaged + 1] = miscounted[i]
end
for i = 1, #over do
  leases.finish(over[i])
end
if #released > 0 then
  call('HSET', META, 'leases_ended', string.format('%d', last_seq + 1))
end
local more = ended < #expired or #expired == 100
local leases_ended = tonumber(call('HGET', META, 'leases_ended') or 0)
return {#released, more and 1 or 0, leases_ended, damaged, call('HLEN', MOVED)}
