-- Tells the feed of a node as if all of it were new: account, cards and spec.
--
-- ARGV  2 feed window   3 node
-- Returns the seq, and R and the account; false where the node is gone.

local node = ARGV[3]
local account, spec = living(node), call('HGET', SPECS, node)
if not account or not spec then
  return false
end
local seq = tell({node}, {account}, {'s', node .. pack_values('<I4', #spec) .. spec})
local resources, record = join_accounts({write_account(account)})
return {seq, resources, record}
