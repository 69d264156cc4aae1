-- Ends moves: each target becomes its pod's reservation, confirmed, and the source is released in the same
-- step. A source on another shard is noted in MOVED; whoever finds the note releases it
-- (resolver/core/moves.py). A target that a successor gets becomes the successor's reservation, and the
-- source stays.
--
-- args  uids: of the pods that get the targets, none twice   targets: UIDs of the targets
--       nodes: of the targets
--       seqs: the commits of the targets, u64 each
--       sources: their nodes   source_seqs: their commits, u64 each
--       here: '1' if the source is on this shard, '0' if it is on another one, '-' if a successor gets
--         the target
--
-- Returns a result for each pod, u8.
local MOVE_TARGET = 4  -- a flag
local uids, targets, nodes = args.uids, args.targets, args.nodes
local own_records, target_records = read_reservations(uids), read_reservations(targets)
local seq = last_seq + 1
local any_prepared = call('HLEN', PREPARED) > 0

local function is_prepared(record)
  return any_prepared and call('HEXISTS', PREPARED, commit_field(record)) == 1
end

-- Whether a record is of this node and this commit, and that is not only prepared.
local function is_of(record, node, of_seq)
  return record and record:sub(1, 4) == node and record:sub(9, 16) == of_seq and not is_prepared(record)
end

local results, moved, sources, source_records = {}, {}, {}, {}
for i = 1, #uids do
  local own, target, node, at = own_records[i], target_records[i], nodes[i], 8 * i - 7
  local here, source_seq = args.here:byte(i) == 49, args.source_seqs:sub(at, at + 7)
  local stands = is_of(target, node, args.seqs:sub(at, at + 7))
  stands = stands and floor(target:byte(31) / MOVE_TARGET) % 2 == 1
  if not stands then
    local done = own and own:sub(1, 4) == node and not is_prepared(own)
    results[i] = done and RESULT_MOVED or RESULT_TARGET_GONE
  elseif
    (here and (not is_of(own, args.sources[i], source_seq) or terminating.is(own))) or (not here and own)
  then
    results[i] = RESULT_SOURCE_CHANGED
  else
    results[i] = RESULT_MOVED
    moved[#moved + 1] = i
    if here then
      local at = #sources + 1
      sources[at], source_records[at] = uids[i], own
    elseif args.here:byte(i) == 48 then
      call('HSET', MOVED, uids[i], args.sources[i] .. source_seq)
    end
  end
end
if #moved > 0 then
  if #sources > 0 then
    release_pods(sources, nil, nil, false, source_records)
  else
    publish(seq, {'n', '', 'R', 0, 'a', ''})
  end
  local changes, former, commits, seq_bytes = {}, {}, {}, pack_values('<I8', seq)
  local middles, fields = {}, {}  -- what follows the seq, and the commit, by the old bytes
  for at = 1, #moved do
    local i = moved[at]
    local record = target_records[i]
    local old = record:sub(9, -SPREAD_BYTES - 1)
    local middle = middles[old]
    if not middle then
      local flags = unpack_values('<I2', record, 31)
      middle = seq_bytes .. record:sub(17, 30) .. pack_values('<I2', flags - MOVE_TARGET)
        .. record:sub(33, -SPREAD_BYTES - 1)
      middles[old], fields[old] = middle, commit_field(record)
    end
    former[at] = targets[i]
    changes[2 * at - 1], changes[2 * at] = uids[i], record:sub(1, 8) .. middle .. record:sub(-SPREAD_BYTES)
    commits[fields[old]] = (commits[fields[old]] or 0) + 1
    if record:byte(31) % 2 == HOLDS_PORTS then
      local held = read_ports(nodes[i])
      for j = 1, #held do
        if held[j]:sub(1, UID_BYTES) == targets[i] then
          held[j] = uids[i] .. held[j]:sub(UID_BYTES + 1)
        end
      end
      write_ports(nodes[i], held)
    end
  end
  write_fields(RESERVATIONS, changes)
  for from = 1, #former, STEP do
    call('HDEL', RESERVATIONS, unpack(former, from, math.min(from + STEP - 1, #former)))
  end
  -- A commit of which nothing is left needs no lease. Of a damaged list nobody knows.
  for field, taken in pairs(commits) do
    local listed, left = call('HGET', PENDING, field) or '', {}
    for at = 1, #listed > taken * UID_BYTES and #listed or 0, UID_BYTES do
      left[#left + 1] = listed:sub(at, at + UID_BYTES - 1)
    end
    local any = #listed % UID_BYTES > 0
    for _, record in ipairs(read_fields(RESERVATIONS, left)) do
      any = any or record
    end
    if not any then
      leases.finish(field)
    end
  end
end
return string.char(unpack(results))
