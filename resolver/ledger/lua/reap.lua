-- Releases the oldest commit whose lease ended unconfirmed, if there is one, by the ledger's own clock.
--
-- ARGV  2 feed window   3 how many of the oldest commits to look at
-- Returns the number of UIDs released, and 1 if a commit was reaped (ask again), else 0.

local now = call('TIME')
local now_ms = now[1] * 1000 + floor(now[2] / 1000)

-- Commits are numbered as time passes and leases are nearly alike, so what ends first is among the oldest.
local seqs = call('HKEYS', PENDING)
table.sort(seqs, function(a, b)
  return tonumber(a) < tonumber(b)
end)
for i = 1, math.min(#seqs, tonumber(ARGV[3])) do
  local record = call('HGET', PENDING, seqs[i])
  if unpack_values('<I8', record) <= now_ms then
    local uids = {}
    for at = 9, #record, 16 do
      uids[#uids + 1] = record:sub(at, at + 15)
    end
    call('HDEL', PENDING, seqs[i])
    -- A pod may have been released and placed anew since: only what this commit reserved is taken.
    local released = give_back(ARGV[2], uids, rep(pack_values('<I8', tonumber(seqs[i])), #uids))
    return {#released, 1}
  end
end
return {0, 0}
