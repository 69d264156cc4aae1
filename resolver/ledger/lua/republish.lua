-- Publishes a node in the feed as if all of it were new: account, cards and spec.
--
-- args  node
--
-- Returns the seq, R, and the account; false: the node was removed.

local node = args.node
local account, spec = living(node), call('HGET', SPECS, node)
if not account or not spec then
  return false
end
local seq = publish_nodes({node}, {account}, {'s', node .. pack_values('<I4', #spec) .. spec})
local resources, record = join_accounts({write_account(account)})
return {seq, resources, record}
