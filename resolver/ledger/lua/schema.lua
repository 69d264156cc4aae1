-- Appends new resource names to the schema. Without the prelude: the schema is not part of a shard.
--
-- KEYS  1 the schema
-- ARGV  1 the number of names known: fewer means that the schema was lost   2.. names
--
-- Returns the whole schema.
local names, known = redis.call('LRANGE', KEYS[1], 0, -1), {}
if #names < tonumber(ARGV[1]) then
  return redis.error_reply('OTHERLEDGER none')
end
for _, name in ipairs(names) do
  known[name] = true
end
for i = 2, #ARGV do
  local name = ARGV[i]
  if not known[name] then
    known[name] = true
    names[#names + 1] = name
    redis.call('RPUSH', KEYS[1], name)
  end
end
return names
