-- Writes a repair if the shard is still as it was read. Otherwise the repair could undo a later change.
--
-- args  read_at: the seq at which the shard was read   seq: the new one
--       based_on: what else it was planned on, for a change of a node whose account is damaged has no seq:
--       for each field the number of its key, its name, and its value or false
--       changes: for each the number of its key, fields and values, fields to remove
--       entry: the feed entry's fields and values
--       leases: for each the commit and what becomes of it ('begin', 'end' with the next reaping, 'forget')
--       lease_ms: of a lease that begins
--
-- Returns the new seq; false: nothing was written.
if last_seq ~= args.read_at then
  return false
end
local based_on = args.based_on
for i = 1, #based_on, 3 do
  if call('HGET', KEYS[based_on[i]], based_on[i + 1]) ~= based_on[i + 2] then
    return false
  end
end
local changes = args.changes
for i = 1, #changes, 3 do
  local key = KEYS[changes[i]]
  write_fields(key, changes[i + 1])
  for from = 1, #changes[i + 2], STEP do
    call('HDEL', key, unpack(changes[i + 2], from, math.min(from + STEP - 1, #changes[i + 2])))
  end
end
for i = 1, #args.leases, 2 do
  local commit, rule = args.leases[i], args.leases[i + 1]
  if rule == 'forget' then
    call('ZREM', LEASES, commit)
  else
    local lease_ms = rule == 'begin' and args.lease_ms or 0
    call('ZADD', LEASES, string.format('%d', leases.now() + lease_ms), commit)
  end
end
publish(args.seq, args.entry)
return args.seq
