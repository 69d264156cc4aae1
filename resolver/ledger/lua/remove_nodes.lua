-- Removes nodes from service: they get nothing from now on. What they hold is released afterwards, in
-- steps; then forget_nodes.lua forgets them. Until then REMOVED has their names.
--
-- args  names
--
-- Returns the seq of the removal, the removed indexes (u32 each), the positions (from 0) of names that are
-- not there, and the indexes of those that were removed before: what they hold may not be released yet.

local names, seq = args.names, last_seq + 1
local nodes, records, missing, before = {}, {}, {}, {}
for position = 1, #names do
  local node = call('HGET', NAMES, names[position])
  local record = node and call('HGET', ACCOUNTS, node)
  local account = record and read_account(record, 0)
  if not node or call('HEXISTS', REMOVED, node) == 1 then
    missing[#missing + 1] = position - 1
    before[#before + 1] = node or nil
  else
    local readable = account  -- a damaged record stays until the node is forgotten
    account = account or read_account(rep('\0', HEAD_BYTES) .. spread(node), 0)
    account[1] = seq
    set_flag(account, FLAG_GONE, true)
    nodes[#nodes + 1], records[#records + 1] = node, write_account(account)
    if readable then
      call('HSET', ACCOUNTS, node, records[#records])
    end
    call('HDEL', SPECS, node)
    call('HDEL', LABELS, node)
    call('HSET', REMOVED, node, names[position])
  end
end
if #nodes == 0 then
  return {last_seq, '', missing, concat(before)}
end
local removed = concat(nodes)
local entry = {'n', removed, 'R', 0, 'a', '', 'g', removed}
entry[4], entry[6] = join_accounts(records)
publish(seq, entry)
return {seq, removed, missing, concat(before)}
