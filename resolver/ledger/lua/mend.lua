-- Writes what a repair found, if the shard is still as it was read: else the mend could hide what was done meanwhile.
--
-- ARGV  2 feed window   3 the seq it was read at
--       4 of each change the number of its key, fields and values, fields to remove  (MessagePack arrays in one)
--       5 the feed entry's fields (MessagePack array)   6 the new seq
-- Returns the new seq; false: nothing was written.
if meta[2] ~= ARGV[3] then
  return false
end
local changes = cmsgpack.unpack(ARGV[4])
for i = 1, #changes, 3 do
  local key = KEYS[changes[i]]
  write_fields(key, changes[i + 1])
  for from = 1, #changes[i + 2], STEP do
    call('HDEL', key, unpack(changes[i + 2], from, math.min(from + STEP - 1, #changes[i + 2])))
  end
end
publish(tonumber(ARGV[6]), ARGV[2], cmsgpack.unpack(ARGV[5]))
return tonumber(ARGV[6])
