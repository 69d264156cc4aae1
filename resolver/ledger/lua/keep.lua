-- Lengthens the lease of commits, as the second phase of a gang on several shards.
--
-- ARGV  2 lease (ms)   3 UIDs (MessagePack array)   4 the commit of each, u64
-- Returns how many of the UIDs still hold what their commit reserved; only then it is touched.

local now = call('TIME')
local deadline = pack_values('<I8', now[1] * 1000 + floor(now[2] / 1000) + tonumber(ARGV[2]))
local records = read_fields(RESERVATIONS, cmsgpack.unpack(ARGV[3]))
local standing, kept = 0, {}
for i = 1, #records do
  local commit = ARGV[4]:sub(8 * i - 7, 8 * i)
  if records[i] and records[i]:sub(9, 16) == commit then
    standing = standing + 1
    if not kept[commit] then
      kept[commit] = true
      local seq = string.format('%d', (unpack_values('<I8', commit)))
      local pending = call('HGET', PENDING, seq)
      if pending then  -- else it is confirmed already
        call('HSET', PENDING, seq, deadline .. pending:sub(9))
      end
    end
  end
end
return standing
