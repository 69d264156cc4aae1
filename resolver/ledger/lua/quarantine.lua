-- Takes a node out of scheduling for a time.
--
-- ARGV  2 feed window   3 node   4 for how long (ms)   5 reason   6 share of the nodes that may be out at once, in thousandths
--       7 the seq at which it changed last, or 0 where any will do
-- Returns 'taken', or why not: 'gone', 'changed', 'already' or 'limit'.

local node, expected = ARGV[3], tonumber(ARGV[7])
local account = living(node)
if not account then
  return 'gone'
end
if expected > 0 and account[1] ~= expected then
  return 'changed'
end
if has_flag(account, FLAG_QUARANTINED) then
  return 'already'
end
if call('HLEN', QUARANTINE) >= math.max(1, floor(call('HLEN', SPECS) * tonumber(ARGV[6]) / 1000)) then
  return 'limit'
end
set_flag(account, FLAG_QUARANTINED, true)
call('HSET', QUARANTINE, node, pack_values('<i8i8', now_ms, now_ms + tonumber(ARGV[4])) .. ARGV[5])
tell({node}, {account}, {})
return 'taken'
