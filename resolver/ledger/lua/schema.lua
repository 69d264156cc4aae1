-- Appends the resource names not yet in the schema. KEYS 1 the schema   ARGV  names.   Returns the whole schema.
local names, known = redis.call('LRANGE', KEYS[1], 0, -1), {}
for _, name in ipairs(names) do
  known[name] = true
end
for _, name in ipairs(ARGV) do
  if not known[name] then
    known[name] = true
    names[#names + 1] = name
    redis.call('RPUSH', KEYS[1], name)
  end
end
return names
