-- Releases what expired commits still hold, in order of their deadlines, by lease time, which goes on here.
--
-- args  most: the number of pods after which it stops
--
-- Returns the number of released UIDs, and 1 if more commits may be expired (call again), else 0, and the
-- seq of the last change that was made here.

local now, clock = leases.now()
call('HMSET', META, 'lease_time', string.format('%d', now), 'lease_seen', string.format('%d', clock))
local expired = call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, 100)
local uids, seqs, most, ended = {}, {}, args.most, 0
while ended < #expired and #uids < most do
  ended = ended + 1
  local field = expired[ended]
  local listed, seq = call('HGET', PENDING, field) or '', pack_values('<I8', tonumber(field) or 0)
  for at = 1, #listed - 15, 16 do
    uids[#uids + 1], seqs[#seqs + 1] = listed:sub(at, at + 15), seq
  end
end
-- A pod may have been released and placed again: only what these commits reserved is released. Leases end after
-- that: if a record cannot be read, nothing has changed.
local over = {unpack(expired, 1, ended)}
local released = release_pods(uids, concat(seqs), nil, false, nil, over)
for i = 1, ended do
  leases.finish(expired[i])
end
if #released > 0 then
  call('HSET', META, 'leases_ended', string.format('%d', last_seq + 1))
end
local more = ended < #expired or #expired == 100
return {#released, more and 1 or 0, tonumber(call('HGET', META, 'leases_ended') or 0)}
