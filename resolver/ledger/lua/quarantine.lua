-- Takes a node out of scheduling for a time.
--
-- args  node   duration_ms   reason
--       most_per_mille: share of the nodes that may be in quarantine at once
--       unchanged_since: the seq of the node's last change, or 0: any
--
-- Returns 'taken', or why not: 'gone', 'changed', 'already' or 'limit'.

local node, expected = args.node, args.unchanged_since
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
if call('HLEN', QUARANTINE) >= math.max(1, floor(call('HLEN', SPECS) * args.most_per_mille / 1000)) then
  return 'limit'
end
set_flag(account, FLAG_QUARANTINED, true)
call('HSET', QUARANTINE, node, pack_values('<i8i8', now_ms, now_ms + args.duration_ms) .. args.reason)
publish_nodes({node}, {account}, {})
return 'taken'
