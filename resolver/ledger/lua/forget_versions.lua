-- Forgets domain versions that every worker has seen.
--
-- args  fields
--
-- Returns how many. A damaged one stays until a repair. This is shard 0: its low watermarks are those of all
-- shards.

local shards, forgotten = tonumber(meta[3]), 0
local version_format = '<' .. rep('I8I8I8', shards)
local low_watermarks = {unpack_values('<' .. rep('I8', shards), meta[5] or rep('\0', 8 * shards))}
for _, field in ipairs(args.fields) do
  local record = call('HGET', DOMAIN_VERSIONS, field)
  local readable = record and #record == 24 * shards
  local version, missable = readable and {unpack_values(version_format, record)}, not readable
  for shard = 1, readable and shards or 0 do
    missable = missable or math.max(version[3 * shard - 2], version[3 * shard]) > low_watermarks[shard]
  end
  if not missable then
    call('HDEL', DOMAIN_VERSIONS, field)
    forgotten = forgotten + 1
  end
end
return forgotten
