-- Validates one proposal batch and reserves what fits. This is the end of the script (see
-- resolver/ledger/scripts.py): it decides one pod after the other, then writes.
--
-- args  the proposal (see resolver/core/values.py); of the pods, in serving order:
--         uids   slots (from 0)   first: first candidates   alternates_each
--         alternates: row by row (a packed array; nil: none)
--         victims: by position, from 1, the UIDs of those to evict if the pod does not fit otherwise
--           (nil: none)
--       of the slots:
--         shared: `<i32 priority, u16 attempt, u16 flags, u64 group, i64 x resources requests>` each; flags:
--           1 holds ports, 2 tolerates a cordoned node
--         cards: `<u16 count, u16 milli>` each (nil: no slot requests any)
--         constraints: by slot, from 1, for each rule that its pods bear or match: key (8 bytes), seq of its
--           registration, topology key ('': the whole cluster is one domain; after '=': the domain itself),
--           roles in which a placement is recorded, roles it relies on, 1 if it counts on matches of its own
--             batch
--       groups: for each its key (8 bytes), definition, and port claims (12 bytes each)
--       rules: the version of the rules from which `constraints` was made (nil: no pod has a group)
--       worker, epoch, sending, snapshot_seq
--       seen: by shard, the seq up to which the worker knows the placements, u64
--       unchecked   existing: the pods exist on their nodes, so they are not validated, and a different
--         reservation on the same node is replaced
--       gang_minimum (0: no gang)   criteria (criteria.lua)   lease_ms
--       prepare_only: the feed does not show the pods until they are committed, and nobody is evicted
--       victims_must_go: even if the pod fits   victims_assumed: victims go only while they are unconfirmed
--       victims_terminate: victims are on their nodes until they are released
--
-- Returns false if the rules have changed. Else seq (0: nothing committed), verdicts (u8 each), nodes (u32
-- each), conflicts (`<u32 position, u32 node, u32 resource, i64 asked, i64 free>`, one for each refused
-- pod), the seqs of existing commits (u64, one for each DUPLICATE), and the refusing nodes: R, indexes,
-- accounts, indexes of those with cards, cards. Then the shard's seq now. Last, for each prepared pod to
-- validate: position from 0, commit, and a domain or false for each constraint of its slot (MessagePack).

local existing = read_reservations(uids)
for position = 1, count do
  local record, slot = existing[position], slots[position]
  if evicted[uids[position]] or taken[uids[position]] then
    record = nil
  end
  local resized = record and args.existing and room.resize(position, first[position], record, slot)
  if not resized and (record or taken[uids[position]]) then
    verdicts[position] = VERDICT.DUPLICATE
    duplicates[#duplicates + 1] = record and record:sub(9, 16) or seq_bytes
    chosen[position] = record and record:sub(1, 4) or taken[uids[position]]
    local unvalidated = constrained and not validated_here and record
    if unvalidated and call('HEXISTS', PREPARED, commit_field(record)) == 1 then
      record_placement(position, chosen[position], slot, (unpack_values('<I8', record, 9)))
    end
  elseif not resized then
    local flat, node = needed[slot] or open_slot(slot), first[position]
    local verdict, evidence, asked, free = refusal(accounts[node], node, flat, slot)
    local in_the_way = evicting[position] and must_go
    local mask = (verdict or in_the_way) and evicting[position] and room.evict(position, node, flat, slot)
    if in_the_way and not verdict then  -- counts if there is no mask
      verdict, evidence, asked, free = VERDICT.CONFLICT_TOPOLOGY, 0, last_seq, 0
    end
    if mask then
      reserve(position, node, slot, mask)
      fit_again(node)
    elseif not verdict then
      reserve(position, node, slot, evidence)
    else
      refuse_from(node)
      local found = false
      -- The worker counts on the node it chose: a pod that rules concern gets no alternate.
      for rank = 1, (evicting[position] or #constraints_of(slot) > 0) and 0 or alternates_each do
        local other = alternate(position, rank)
        if other == NO_NODE then
          break
        end
        local again, mask = refusal(accounts[other], other, flat, slot)
        if not again then
          reserve(position, other, slot, mask)
          found = true
          break
        end
        refuse_from(other)
      end
      if not found then
        record_refused(constraints_of(slot))
        verdicts[position], chosen[position] = verdict, node
        conflicts[#conflicts + 1] = pack_values('<I4', position - 1) .. node
          .. pack_values('<I4i8i8', evidence, asked, free)
      end
    end
  end
end

-- A gang below its minimum leaves no trace: nothing is written, and the refusing nodes are read again.
if #reserved_uids + #duplicates < args.gang_minimum then
  for position = 1, count do
    if verdicts[position] == VERDICT.COMMITTED then
      verdicts[position], chosen[position], queries[position] = VERDICT.GANG_ABORTED, first[position], nil
    end
  end
  reserved_uids, accounts, cards = {}, {}, {}
  read_accounts(refusing_nodes)
end

if #reserved_uids > 0 then
  local records, changes = {}, {}
  for i = 1, #touched_nodes do
    local node = touched_nodes[i]
    local record = write_account(accounts[node])
    records[i], changes[2 * i - 1], changes[2 * i] = record, node, record
  end
  write_fields(ACCOUNTS, changes)
  write_evicted()
  write_fields(RESERVATIONS, reservations)
  local entry = {'n', concat(touched_nodes)}
  entry[3], entry[5] = 'R', 'a'
  entry[4], entry[6] = join_accounts(records)
  append_cards(entry, touched_nodes, touched_cards, cards)
  count_groups(1, placed_groups, placed, definitions)
  if prepare_only then
    call('HSET', PREPARED, string.format('%d', seq), #reserved_uids)
    entry[#entry + 1], entry[#entry + 2] = 'h', '1'
  else
    local left_definitions = count_groups(-1, left_groups, left)
    append_groups(entry, placed_groups, placed, definitions, left_groups, left, left_definitions)
  end
  entry[#entry + 1], entry[#entry + 2] = 'w', args.epoch
  if #evictions > 0 then
    entry[#entry + 1], entry[#entry + 2] = 'v', concat(evictions)
  end
  if #evicted_uids + room.resized > 0 then
    entry[#entry + 1], entry[#entry + 2] = 'x', #evicted_uids + room.resized
  end
  for node, held in pairs(touched_ports) do
    write_ports(node, held)
  end
  write_versions()
  leases.begin(seq, args.lease_ms, reserved_uids)
  publish(seq, entry)
end

local function packed_queries()
  local flat = {}
  for position, query in pairs(queries) do
    local at = #flat
    flat[at + 1], flat[at + 2], flat[at + 3] = position - 1, query[1], query[2]
  end
  return #flat > 0 and cmsgpack.pack(flat) or ''
end

local function reply()
  local fresh, fresh_card_nodes, fresh_cards = {}, {}, {}
  local now = #reserved_uids > 0 and seq or last_seq
  for i = 1, #refusing_nodes do
    fresh[i] = write_account(shown_account(refusing_nodes[i], now))
    local used = args.cards and cards_of(refusing_nodes[i])
    if used then
      fresh_card_nodes[#fresh_card_nodes + 1] = refusing_nodes[i]
      fresh_cards[#fresh_cards + 1] = pack_values(CARDS_FORMAT, unpack(used, 1, 16))
    end
  end
  local fresh_resources, fresh_records = join_accounts(fresh)
  return {
    #reserved_uids > 0 and seq or 0, string.char(unpack(verdicts)), concat(chosen), concat(conflicts),
    concat(duplicates),
    fresh_resources, concat(refusing_nodes), fresh_records, concat(fresh_card_nodes), concat(fresh_cards),
    now, packed_queries(),
  }
end

return reply()
