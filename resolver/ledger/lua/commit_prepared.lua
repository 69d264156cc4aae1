-- Second phase of a commit on several shards: turns prepared pods into a commit. Pods that were committed
-- before get a new lease.
--
-- args  lease_ms   uids   seqs: the commit of each, u64
--
-- Returns the commit that each pod belongs to now, u64: a new one if the pod was prepared, 0 if it does
-- not hold what that commit reserved. Only pods of those commits change.

local uids, lease_ms = args.uids, args.lease_ms
local records, seq = read_reservations(uids), last_seq + 1
local seq_bytes, commits, extended = pack_values('<I8', seq), {}, {}
local prepared_pods, committed, changes, groups, coming = {}, {}, {}, {}, {}
for i = 1, #records do
  local record, commit = records[i], args.seqs:sub(8 * i - 7, 8 * i)
  commits[i] = rep('\0', 8)
  if record and record:sub(9, 16) == commit then
    commits[i] = commit
    local field = commit_field(record)
    if prepared_pods[field] or call('HEXISTS', PREPARED, field) == 1 then
      prepared_pods[field] = (prepared_pods[field] or 0) + 1
      commits[i], committed[#committed + 1] = seq_bytes, uids[i]
      changes[#changes + 1], changes[#changes + 2] = uids[i], record:sub(1, 8) .. seq_bytes .. record:sub(17)
      local group = record:sub(33, 40)
      if group ~= NO_GROUP then
        if not coming[group] then
          coming[group], groups[#groups + 1] = {}, group
        end
        coming[group][#coming[group] + 1] = record:sub(1, 4)
      end
    elseif not extended[field] then
      extended[field] = true
      if call('HEXISTS', PENDING, field) == 1 then  -- else the commit is confirmed
        call('ZADD', LEASES, string.format('%d', leases.now() + lease_ms), field)
      end
    end
  end
end
if #committed > 0 then
  write_fields(RESERVATIONS, changes)
  local entry, definitions = {'n', '', 'R', 0, 'a', ''}, {}
  for i = 1, #groups do
    definitions[groups[i]] = call('HGET', GROUPS, groups[i]) or ''
  end
  append_groups(entry, groups, coming, definitions, {}, {}, {})
  for _, field in ipairs(end_prepared(entry, prepared_pods)) do
    leases.finish(field)
  end
  leases.begin(seq, lease_ms, committed)
  publish(seq, entry)
end
return concat(commits)
