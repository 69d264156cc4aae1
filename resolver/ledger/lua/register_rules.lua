-- args  rules: for each its key (8 bytes) and the packed rule
--       again: also rules that are registered, so that a concurrent forget_rules keeps them
--
-- Registers rules: from now on every placement that concerns them is recorded. Takes a seq in the feed, so
-- that a worker can have seen it. Returns nothing.

-- A damaged record counts as none.
local function is_registered(key, rule)
  local record = call('HGET', RULES, key)
  local same = record and #record == 8 + #rule and record:sub(9) == rule
  return same and unpack_values('<I8', record) <= last_seq
end

local rules, seq, new = args.rules, last_seq + 1, false
for i = 1, #rules, 2 do
  if args.again or not is_registered(rules[i], rules[i + 1]) then
    call('HSET', RULES, rules[i], pack_values('<I8', seq) .. rules[i + 1])
    new = true
  end
end
if new then
  call('HSET', META, 'rules', string.format('%d', seq))
  publish(seq, {'n', '', 'R', 0, 'a', ''})
end
