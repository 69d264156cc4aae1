-- Shared by the scripts that release: deletes reservations and returns to nodes what they hold.
--
-- `seqs`: nil, or 8 bytes for each UID; then only a reservation of that very commit is released. `as_of`:
-- nil, or a seq; then only reservations that are not newer are released. `unconfirmed`: only those that are
-- prepared or assumed. `rewritten`: nil, or the records of these UIDs, which the caller has read; it writes
-- others in their place, so these are not deleted. `over`: nil, or commits that end with this, whatever is
-- left of them. UIDs without a reservation are skipped, so the function may run twice. Returns the released
-- UIDs, and those of the commits that end of which another number of pods was stored than they had.

-- The records of the accounts of these reservations' nodes, by node; false: the node is forgotten. One read
-- for all.
local function accounts_of(reservations)
  local nodes, stored = {}, {}
  for i = 1, #reservations do
    local node = reservations[i] and reservations[i]:sub(1, 4)
    if node and stored[node] == nil then
      stored[node], nodes[#nodes + 1] = false, node
    end
  end
  local read = read_fields(ACCOUNTS, nodes)
  for i = 1, #nodes do
    stored[nodes[i]] = read[i]
  end
  return stored
end

-- Of these released pods, what concerns evictions. Who terminated leaves its preemptor. If a preemptor is
-- released first, its victims hold all they held before: they are on the node, and nobody else may have their
-- room.
local function settle_evictions(released, accounts)
  local shares, victims = read_fields(TERMINATING, released), read_fields(NOMINATED, released)
  local over, left, restored = {}, {}, {}
  for i = 1, #released do
    over[released[i]] = true
  end
  for i = 1, #released do
    local preemptor = shares[i] and shares[i]:sub(1, UID_BYTES)
    if preemptor then
      left[preemptor] = true
    end
    for at = 1, victims[i] and #victims[i] or 0, UID_BYTES do
      restored[#restored + 1] = victims[i]:sub(at, at + UID_BYTES - 1)
    end
  end
  local records, taken, changes = read_reservations(restored), read_fields(TERMINATING, restored), {}
  for i = #restored, 1, -1 do
    local share_bytes = records[i] and #records[i] - RESERVATION_BYTES - SPREAD_BYTES
    if not records[i] or not taken[i] or #taken[i] < UID_BYTES + share_bytes then
      -- It is released as well; or it is damaged, and what is released must be released whole.
      table.remove(restored, i)
      table.remove(records, i)
      table.remove(taken, i)
    end
  end
  for i = 1, #restored do
    local resources, amounts = reserved_amounts(records[i])
    local share = {unpack_values('<' .. rep('i8', resources), taken[i], UID_BYTES + 1)}
    local account = accounts[records[i]:sub(1, 4)]
    for r = 1, resources do
      amounts[r] = amounts[r] + share[r]
      if account then
        account[4 + 2 * r] = account[4 + 2 * r] + share[r]
      end
    end
    changes[2 * i - 1], changes[2 * i] = restored[i], terminating.record(records[i], resources, amounts)
    call('HDEL', TERMINATING, restored[i])
  end
  write_fields(RESERVATIONS, changes)
  for i = 1, #released do
    call('HDEL', TERMINATING, released[i])
    call('HDEL', NOMINATED, released[i])
  end
  for preemptor in pairs(left) do
    local listed, kept = call('HGET', NOMINATED, preemptor) or '', {}
    for at = 1, #listed, UID_BYTES do
      local victim = listed:sub(at, at + UID_BYTES - 1)
      kept[#kept + 1] = not over[victim] and victim or nil
    end
    if #kept > 0 then
      call('HSET', NOMINATED, preemptor, concat(kept))
    else
      call('HDEL', NOMINATED, preemptor)
    end
  end
end

local function release_pods(uids, seqs, as_of, unconfirmed, rewritten, over)
  local records, nodes, seen = rewritten or read_reservations(uids), {}, {}
  local accounts, cards, touched_cards, released = {}, {}, {}, {}
  local stored = accounts_of(records)
  local groups, leaving, ports = {}, {}, {}
  -- The feed has not shown prepared pods, so it must not show that they leave.
  local any_prepared, prepared_pods, prepared_groups, prepared = call('HLEN', PREPARED) > 0, {}, {}, {}
  for i = 1, #uids do
    local record = records[i]
    local meant = record and not seen[uids[i]]
    meant = meant and (not seqs or record:sub(9, 16) == seqs:sub(8 * i - 7, 8 * i))
    meant = meant and (not unconfirmed or call('HEXISTS', PENDING, commit_field(record)) == 1)
    if meant and not (as_of and unpack_values('<I8', record, 9) > as_of) then
      seen[uids[i]] = true
      released[#released + 1] = uids[i]
      local node = record:sub(1, 4)
      local account = accounts[node]
      if account == nil then
        local resources = (#record - RESERVATION_BYTES - SPREAD_BYTES) / 8
        account = stored[node] and read_account(stored[node], resources)  -- false: the node is forgotten
        accounts[node], nodes[#nodes + 1] = account, account and node or nil
      end
      if account then
        give_amounts(account, record)
      end
      if account and record:sub(5, 6) ~= '\0\0' then
        local mask, milli = unpack_values('<I2I2', record, 5)
        cards[node] = cards[node] or read_cards(node)
        if cards[node] then
          touched_cards[node] = true
          give_cards(cards[node], mask, milli)
        end
      end
      local field = any_prepared and commit_field(record)
      local is_prepared = field and (prepared_pods[field] or call('HEXISTS', PREPARED, field) == 1)
      if is_prepared then
        prepared_pods[field] = (prepared_pods[field] or 0) + 1
      end
      local group = record:sub(33, 40)
      if group ~= NO_GROUP then
        local keys, on = is_prepared and prepared_groups or groups, is_prepared and prepared or leaving
        if not on[group] then
          on[group], keys[#keys + 1] = {}, group
        end
        on[group][#on[group] + 1] = node
      end
      if record:byte(31) % 2 == HOLDS_PORTS then
        ports[node] = without(ports[node] or read_ports(node), uids[i])
      end
    end
  end
  local miscounted = {}
  for i = 1, any_prepared and over and #over or 0 do
    local stored_count = call('HGET', PREPARED, over[i])
    if stored_count then
      if stored_count ~= string.format('%d', prepared_pods[over[i]] or 0) then
        miscounted[#miscounted + 1] = over[i]
      end
      call('HSET', PREPARED, over[i], 1)  -- whatever it counted
      prepared_pods[over[i]] = 1
    end
  end
  if #released == 0 and not next(prepared_pods) then
    return released, miscounted
  end
  for from = 1, rewritten and 0 or #released, STEP do
    call('HDEL', RESERVATIONS, unpack(released, from, math.min(from + STEP - 1, #released)))
  end
  if call('EXISTS', TERMINATING, NOMINATED) > 0 then
    settle_evictions(released, accounts)
  end
  local seq, changes, joined = last_seq + 1, {}, {}
  for i = 1, #nodes do
    local node = nodes[i]
    local account = accounts[node]
    account[1] = seq
    if has_flag(account, FLAG_SHRUNK) then
      local used = cards[node] or read_cards(node)
      set_flag(account, FLAG_SHRUNK, overcommitted(account) or has_closed_card(used))
    end
    joined[i], changes[2 * i - 1] = write_account(account), node
    changes[2 * i] = joined[i]
  end
  write_fields(ACCOUNTS, changes)
  local entry = {'n', concat(nodes), 'R', 0, 'a', '', 'x', #released}
  entry[4], entry[6] = join_accounts(joined)
  append_cards(entry, nodes, touched_cards, cards)
  append_groups(entry, {}, {}, {}, groups, leaving, count_groups(-1, groups, leaving))
  count_groups(-1, prepared_groups, prepared)
  end_prepared(entry, prepared_pods)
  for node, held in pairs(ports) do
    write_ports(node, held)
  end
  publish(seq, entry)
  return released, miscounted
end
