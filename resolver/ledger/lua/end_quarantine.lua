-- Ends the quarantine of one node, or of all whose time is over.
--
-- args  node (nil: any)
--
-- Returns the nodes.

local ended, back, accounts = {}, {}, {}
local quarantined = call('HGETALL', QUARANTINE)
for i = 1, #quarantined, 2 do
  local node, record = quarantined[i], quarantined[i + 1]
  local is_over = #record < 16 or unpack_values('<i8', record, 9) <= now_ms  -- a damaged one is
  if node == args.node or not args.node and is_over then
    call('HDEL', QUARANTINE, node)
    ended[#ended + 1] = node
    local account = living(node)
    if account then
      set_flag(account, FLAG_QUARANTINED, false)
      back[#back + 1], accounts[#accounts + 1] = node, account
    end
  end
end
if #back > 0 then
  publish_nodes(back, accounts, {'x', #back})  -- for waiting pods this is like released room
end
return ended
