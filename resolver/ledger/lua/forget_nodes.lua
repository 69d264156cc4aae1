-- Forgets removed nodes on which nothing is reserved any more: their indexes are free for new nodes.
--
-- args  nodes
--
-- Returns how many. META has the free indexes in 'free', 4 bytes each; the one that is free longest comes first.

local function holds_nothing(account)
  for at = 6, #account - 2, 2 do
    if account[at] ~= 0 then
      return false
    end
  end
  return true
end

local free = {}
for _, node in ipairs(args.nodes) do
  local name, record = call('HGET', REMOVED, node), call('HGET', ACCOUNTS, node)
  local account = record and read_account(record, 0)
  if name and (not account or holds_nothing(account)) and call('HEXISTS', PORTS, node) == 0 then
    call('HDEL', NAMES, name)
    for _, key in ipairs({ACCOUNTS, CARDS, SPECS, LABELS, VERSIONS, QUARANTINE, REMOVED}) do
      call('HDEL', key, node)
    end
    free[#free + 1] = node
  end
end
if #free > 0 then
  call('HSET', META, 'free', (call('HGET', META, 'free') or '') .. concat(free))
end
return #free
