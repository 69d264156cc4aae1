-- From here on placements that only these rules see are noted no more.
--
-- ARGV  2 feed window   3 keys of rules (MessagePack array)   4 this shard's floor
-- Returns the keys of those that were forgotten: registered before the floor and, as far as that is noted here, by no pod
-- used since. Takes a number, as registering does, for other resolvers to read the rules again.

local asked, seq, forgotten = cmsgpack.unpack(ARGV[3]), last_seq + 1, {}
for i = 1, #asked do
  local record = call('HGET', RULES, asked[i])
  local born = record and unpack_values('<I8', record)
  if born and born <= tonumber(ARGV[4]) and call('HEXISTS', STAMPS, asked[i] .. 'u') == 0 then
    call('HDEL', RULES, asked[i])
    forgotten[#forgotten + 1] = asked[i]
  end
end
if #forgotten > 0 then
  call('HSET', META, 'rules', string.format('%d', seq))
  publish(seq, ARGV[2], {'n', '', 'R', 0, 'a', ''})
end
return concat(forgotten)
