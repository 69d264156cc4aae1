-- Gives nodes back to scheduling: one, or all whose time is over.
--
-- ARGV  2 feed window   3 node, or ''
-- Returns the nodes.

local ended, back, accounts = {}, {}, {}
local quarantined = call('HGETALL', QUARANTINE)
for i = 1, #quarantined, 2 do
  local node, record = quarantined[i], quarantined[i + 1]
  if node == ARGV[3] or ARGV[3] == '' and unpack_values('<i8', record, 9) <= now_ms then
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
  tell(back, accounts, {'x', #back})  -- to who waits for room it is as good as room given back
end
return ended
