-- Takes nodes out of service: from here on they get nothing. What they hold is released afterwards, in steps.
--
-- ARGV  2 feed window   3 names (MessagePack array)
-- Returns the seq of the removal, the indexes removed (u32 each), the positions (from 0) of names that are not there, and of
-- these the indexes of nodes that were removed before: what they held may not be released yet.

local names, seq = cmsgpack.unpack(ARGV[3]), last_seq + 1
local nodes, records, missing, before = {}, {}, {}, {}
for position = 1, #names do
  local node = call('HGET', NAMES, names[position])
  local account = node and read_account(call('HGET', ACCOUNTS, node), 0)
  if not account or has_flag(account, FLAG_GONE) then
    missing[#missing + 1] = position - 1
    before[#before + 1] = node or nil
  else
    account[1] = seq
    set_flag(account, FLAG_GONE, true)
    set_flag(account, FLAG_SHRUNK, false)
    nodes[#nodes + 1], records[#records + 1] = node, write_account(account)
    call('HSET', ACCOUNTS, node, records[#records])
    call('HDEL', SPECS, node)
    call('HDEL', LABELS, node)
  end
end
if #nodes == 0 then
  return {last_seq, '', missing, concat(before)}
end
local removed = concat(nodes)
local entry = {'n', removed, 'R', 0, 'a', '', 'g', removed}
entry[4], entry[6] = join_accounts(records)
publish(seq, ARGV[2], entry)
return {seq, removed, missing, concat(before)}
