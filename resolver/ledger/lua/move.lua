-- Moves pods in one step: each that fits on its target gets it as its reservation, confirmed, and what it
-- held before, its source, is released (docs/adr/0097-moves-in-one-step.md). Pods that are judged later may
-- take the room that earlier ones left. This is the end of the script, in place of commit.lua, and has the
-- same arguments and the same reply.
--
-- args  source_seqs: the commits of the sources, u64 each, in serving order
--
-- DUPLICATE: the pod does not hold its source as it was, and nothing was changed. The node and the commit are
-- those of what it holds; no node and 0: nothing, or something that is only prepared.

local own_records = read_reservations(uids)
local any_prepared, any_evictions = call('HLEN', PREPARED) > 0, call('EXISTS', TERMINATING, NOMINATED) > 0

-- Returns what the pod held to its source.
local function leave(uid, record)
  local node = record:sub(1, 4)
  local account = accounts[node]
  if account then  -- else the node is forgotten, or its account is damaged
    give_amounts(account, record)
    if record:sub(5, 6) ~= '\0\0' and cards_of(node) then
      give_cards(cards[node], unpack_values('<I2I2', record, 5))
      touched_cards[node] = true
    end
    touch(account, node)
  end
  if record:byte(31) % 2 == HOLDS_PORTS then
    ports[node] = without(ports_of(node), uid)
    touched_ports[node] = ports[node]
  end
  count_out(record, node)
end

do
  local sources = {}
  for position = 1, count do
    local node = own_records[position] and own_records[position]:sub(1, 4)
    if node and accounts[node] == nil then
      sources[#sources + 1] = node
    end
  end
  read_accounts(sources)
end

for position = 1, count do
  local record, slot, at = own_records[position], slots[position], 8 * position - 7
  if record and any_prepared and call('HEXISTS', PREPARED, commit_field(record)) == 1 then
    record = nil
  end
  if not record or record:sub(9, 16) ~= args.source_seqs:sub(at, at + 7) or terminating.is(record) then
    verdicts[position] = VERDICT.DUPLICATE
    chosen[position] = record and record:sub(1, 4) or NO_NODE
    duplicates[#duplicates + 1] = record and record:sub(9, 16) or rep('\0', 8)
  else
    local node = first[position]
    local need = needed[slot] or open_slot(slot)
    local verdict, evidence, asked, free = refusal(accounts[node], node, need, slot)
    if verdict then
      record_refused(constraints_of(slot))
      verdicts[position], chosen[position] = verdict, node
      conflicts[#conflicts + 1] = pack_values('<I4', position - 1) .. node
        .. pack_values('<I4i8i8', evidence, asked, free)
    else
      reserve(position, node, slot, evidence)
      leave(uids[position], record)
      if any_evictions then  -- at once: the next pod must not get what this one's victims hold again
        settle_evictions({uids[position]}, accounts)
      end
    end
  end
end

if #reserved_uids > 0 then
  local records, changes = {}, {}
  for i = 1, #touched_nodes do
    local node = touched_nodes[i]
    fit_again(node)
    local record = write_account(accounts[node])
    records[i], changes[2 * i - 1], changes[2 * i] = record, node, record
  end
  write_fields(ACCOUNTS, changes)
  write_fields(RESERVATIONS, reservations)
  local entry = {'n', concat(touched_nodes), 'R', 0, 'a', '', 'w', args.epoch, 'x', #reserved_uids}
  entry[4], entry[6] = join_accounts(records)
  append_cards(entry, touched_nodes, touched_cards, cards)
  count_groups(1, placed_groups, placed, definitions)
  append_groups(
    entry, placed_groups, placed, definitions, left_groups, left, count_groups(-1, left_groups, left)
  )
  for node, held in pairs(touched_ports) do
    write_ports(node, held)
  end
  write_versions()
  publish(seq, entry)
end

return {
  #reserved_uids > 0 and seq or 0, string.char(unpack(verdicts)), concat(chosen), concat(conflicts),
  concat(duplicates), 0, '', '', '', '', #reserved_uids > 0 and seq or last_seq, '',
}
