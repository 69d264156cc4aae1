-- ARGV  2 feed window   3 of each rule its key (8 bytes) and what it says, in turn (MessagePack array)
--       4 '1': also those that are registered, so that whoever is about to forget them does not
-- From here on every placement that a rule sees is noted. Takes a number in the feed, so that a worker can have seen it.
-- Returns nothing.

local rules, seq, new = cmsgpack.unpack(ARGV[3]), last_seq + 1, false
for i = 1, #rules, 2 do
  if ARGV[4] == '1' or call('HEXISTS', RULES, rules[i]) == 0 then
    call('HSET', RULES, rules[i], pack_values('<I8', seq) .. rules[i + 1])
    new = true
  end
end
if new then
  call('HSET', META, 'rules', string.format('%d', seq))
  publish(seq, ARGV[2], {'n', '', 'R', 0, 'a', ''})
end
