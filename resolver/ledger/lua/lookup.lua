-- ARGV  2 UIDs (MessagePack array). Returns `<u32 node, u64 seq, u64 epoch>` for each; node 0xFFFFFFFF: nothing held.
local records, found = read_fields(RESERVATIONS, cmsgpack.unpack(ARGV[2])), {}
for i = 1, #records do
  local record = records[i]
  found[i] = record and record:sub(1, 4) .. record:sub(9, 24) or '\255\255\255\255' .. rep('\0', 16)
end
return concat(found)
