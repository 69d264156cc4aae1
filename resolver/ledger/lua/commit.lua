-- Validates one proposal batch and reserves what fits: the end of its script (resolver/ledger/scripts.py), where it is decided of one
-- pod after the other, and written.
--
-- ARGV  2 feed window (entries)    3 worker               4 worker epoch (decimal)   5 snapshot_seq
--       6 lease (ms)               7 '1': unchecked; '2': the pods stand there already, whatever there is room for: those that
--         have reservations there of something else get them anew
--       8 R, resources per slot
--       9 UIDs                    10 slots from 0        11 first candidates        12 alternates per pod
--      13 alternates, row by row  (9, 10, 11, 13: MessagePack arrays)
--      14 per slot `<i32 priority, u16 attempt, u16 flags, u64 group, i64 x R requests>`; flags: 1 holds ports, 2 tolerates
--         the cordon of a node
--      15 per slot `<u16 count, u16 milli>` of cards, or '' when no slot wants any
--      16 of each group its key (8 bytes), definition and claims of ports (12 bytes each), in turn  (MessagePack array)
--      17 the version of the rules by which 18 was found, or '' where no pod is of any group
--      18 by slot, from 1: of each rule that its pods bear or match its key (8 bytes), the seq of its registration, topology
--         key ('' where the whole cluster is one domain), roles under which a placement is noted, roles it relies on, 1 where
--         it counts on matches of its own batch  (MessagePack)
--      19 the least number of pods of the gang that this batch is, 0 where it is none
--      20 by shard: the seq up to which the worker knows which pods are where, u64
--      21 '1': what is reserved is held: no feed tells of its pods until it is kept, and nobody goes for them
--      22 by position, from 1: UIDs of the pods that go where that pod does not fit without (MessagePack), or ''
--      23 '1': they go though that pod would fit    24 criteria (criteria.lua)
--      25 '1': they go only while nobody has confirmed them
-- Pods stand in the order in which they are to be served.
--
-- Returns false where the rules are others by now. Else seq (0: nothing committed), verdicts (u8 each), nodes (u32 each),
-- conflicts (`<u32 position, u32 node, u32 resource, i64 asked, i64 free>`, one for each refused pod), the seqs that stand (u64,
-- one for each DUPLICATE), and the refusing nodes: R, indexes, accounts, indexes of those with cards, cards. Then the shard's
-- seq as of now, and last of each pod that is held and must be judged: position from 0, commit, and a domain or false for
-- each guard of its slot, in turn (MessagePack).

local standing = read_fields(RESERVATIONS, uids)
for position = 1, count do
  local record, slot = standing[position], slots[position]
  if evicted[uids[position]] or taken[uids[position]] then
    record = nil
  end
  local anew = record and ARGV[7] == '2' and room.restate(position, first[position], record, slot)
  if not anew and (record or taken[uids[position]]) then
    verdicts[position] = DUPLICATE
    duplicates[#duplicates + 1] = record and record:sub(9, 16) or seq_bytes
    chosen[position] = record and record:sub(1, 4) or taken[uids[position]]
    if guarded and not judged_here and record and call('HEXISTS', HOLDS, hold_field(record)) == 1 then
      count_placed(position, chosen[position], slot, (unpack_values('<I8', record, 9)))
    end
  elseif not anew then
    local flat, node = wanted[slot] or open_slot(slot), first[position]
    local verdict, evidence, asked, free = refusal(accounts[node], node, flat, slot)
    local in_the_way = evicting[position] and must_go
    local mask = (verdict or in_the_way) and evicting[position] and room.evict(position, node, flat, slot)
    if in_the_way and not verdict and not mask then
      verdict, evidence, asked, free = CONFLICT_TOPOLOGY, 0, last_seq, 0
    end
    if mask then
      reserve(position, node, slot, mask)
      fit_again(node)
    elseif not verdict then
      reserve(position, node, slot, evidence)
    else
      refuse_from(node)
      local found = false
      -- The worker reckons with a pod where it placed it: one that rules look at goes nowhere else.
      for rank = 1, (evicting[position] or #guards_of(slot) > 0) and 0 or alternates_each do
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
        note_missed(guards_of(slot))
        verdicts[position], chosen[position] = verdict, node
        conflicts[#conflicts + 1] = pack_values('<I4', position - 1) .. node .. pack_values('<I4i8i8', evidence, asked, free)
      end
    end
  end
end

-- A gang that falls short leaves no trace: nothing is written, and what is told of the nodes is read anew.
if #reserved_uids + #duplicates < tonumber(ARGV[19]) then
  for position = 1, count do
    if verdicts[position] == COMMITTED then
      verdicts[position], chosen[position], questions[position] = GANG_ABORTED, first[position], nil
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
  delete_evicted()
  write_fields(RESERVATIONS, reservations)
  local entry = {'n', concat(touched_nodes)}
  entry[3], entry[5] = 'R', 'a'
  entry[4], entry[6] = join_accounts(records)
  append_cards(entry, touched_nodes, touched_cards, cards)
  count_groups(1, placed_groups, placed, definitions)
  if held_back then
    call('HSET', HOLDS, string.format('%d', seq), #reserved_uids)
    entry[#entry + 1], entry[#entry + 2] = 'h', '1'
  else
    append_groups(entry, placed_groups, placed, definitions, left_groups, left, count_groups(-1, left_groups, left))
  end
  entry[#entry + 1], entry[#entry + 2] = 'w', ARGV[4]
  if #evictions > 0 then
    entry[#entry + 1], entry[#entry + 2] = 'v', concat(evictions)
  end
  if #evicted_uids + room.restated > 0 then
    entry[#entry + 1], entry[#entry + 2] = 'x', #evicted_uids + room.restated
  end
  for node, held in pairs(touched_ports) do
    write_ports(node, held)
  end
  write_stamps()
  local now = call('TIME')
  local deadline = now[1] * 1000 + floor(now[2] / 1000) + tonumber(ARGV[6])
  call('HSET', PENDING, string.format('%d', seq), pack_values('<I8', deadline) .. concat(reserved_uids))
  publish(seq, ARGV[2], entry)
end

local function packed_questions()
  local flat = {}
  for position, question in pairs(questions) do
    local at = #flat
    flat[at + 1], flat[at + 2], flat[at + 3] = position - 1, question[1], question[2]
  end
  return #flat > 0 and cmsgpack.pack(flat) or ''
end

local function reply()
  local fresh, fresh_card_nodes, fresh_cards = {}, {}, {}
  for i = 1, #refusing_nodes do
    fresh[i] = write_account(accounts[refusing_nodes[i]])
    local used = ARGV[15] ~= '' and cards_of(refusing_nodes[i])
    if used then
      fresh_card_nodes[#fresh_card_nodes + 1] = refusing_nodes[i]
      fresh_cards[#fresh_cards + 1] = pack_values(CARDS_FORMAT, unpack(used, 1, 16))
    end
  end
  local fresh_resources, fresh_records = join_accounts(fresh)
  return {
    #reserved_uids > 0 and seq or 0, string.char(unpack(verdicts)), concat(chosen), concat(conflicts), concat(duplicates),
    fresh_resources, concat(refusing_nodes), fresh_records, concat(fresh_card_nodes), concat(fresh_cards),
    #reserved_uids > 0 and seq or last_seq, judged_here and '' or packed_questions(),
  }
end

return reply()
