-- Makes commits of holds, as the second phase over several shards, and lengthens the lease of what was kept before.
--
-- ARGV  2 lease (ms)   3 UIDs (MessagePack array)   4 the commit of each, u64   5 feed window
-- Returns for each of the UIDs the commit that it stands by now, u64: another where it was held, 0 where it holds no more what
-- that commit reserved; only what stands is touched.

local now, uids = call('TIME'), cmsgpack.unpack(ARGV[3])
local deadline = pack_values('<I8', now[1] * 1000 + floor(now[2] / 1000) + tonumber(ARGV[2]))
local records, seq, NO_GROUP = read_fields(RESERVATIONS, uids), last_seq + 1, rep('\0', 8)
local seq_bytes, standing, lengthened = pack_values('<I8', seq), {}, {}
local held, kept, changes, groups, coming = {}, {}, {}, {}, {}
for i = 1, #records do
  local record, commit = records[i], ARGV[4]:sub(8 * i - 7, 8 * i)
  standing[i] = rep('\0', 8)
  if record and record:sub(9, 16) == commit then
    standing[i] = commit
    local field = hold_field(record)
    if held[field] or call('HEXISTS', HOLDS, field) == 1 then
      held[field] = (held[field] or 0) + 1
      standing[i], kept[#kept + 1] = seq_bytes, uids[i]
      changes[#changes + 1], changes[#changes + 2] = uids[i], record:sub(1, 8) .. seq_bytes .. record:sub(17)
      local group = record:sub(33, 40)
      if group ~= NO_GROUP then
        if not coming[group] then
          coming[group], groups[#groups + 1] = {}, group
        end
        coming[group][#coming[group] + 1] = record:sub(1, 4)
      end
    elseif not lengthened[field] then
      lengthened[field] = true
      local pending = call('HGET', PENDING, field)
      if pending then  -- else it is confirmed already
        call('HSET', PENDING, field, deadline .. pending:sub(9))
      end
    end
  end
end
if #kept > 0 then
  write_fields(RESERVATIONS, changes)
  local entry, definitions = {'n', '', 'R', 0, 'a', ''}, {}
  for i = 1, #groups do
    definitions[groups[i]] = call('HGET', GROUPS, groups[i])
  end
  append_groups(entry, groups, coming, definitions, {}, {}, {})
  for _, field in ipairs(end_holds(entry, held)) do
    call('HDEL', PENDING, field)
  end
  call('HSET', PENDING, string.format('%d', seq), deadline .. concat(kept))
  publish(seq, ARGV[5], entry)
end
return concat(standing)
