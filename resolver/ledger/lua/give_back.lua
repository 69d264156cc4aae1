-- Shared by release and reap: takes reservations away and gives nodes back what they held.
--
-- `seqs`: nil, or 8 bytes for each UID: only a reservation of that very commit is taken. UIDs without a
-- reservation are passed over, so that doing it twice is harmless. Returns the UIDs that were released.

local function give_back(window, uids, seqs)
  local records, nodes, seen = read_fields(RESERVATIONS, uids), {}, {}
  local accounts, cards, touched_cards, released = {}, {}, {}, {}
  local groups, leaving, ports = {}, {}, {}
  -- Of held pods the feed has not told.
  local any_holds, held, untold_groups, untold = call('HLEN', HOLDS) > 0, {}, {}, {}
  for i = 1, #uids do
    local record = records[i]
    if record and not seen[uids[i]] and (not seqs or record:sub(9, 16) == seqs:sub(8 * i - 7, 8 * i)) then
      seen[uids[i]] = true
      released[#released + 1] = uids[i]
      local node = record:sub(1, 4)
      local resources, amounts = reserved_amounts(record)
      local account = accounts[node]
      if not account then
        account = read_account(call('HGET', ACCOUNTS, node), resources)
        accounts[node], nodes[#nodes + 1] = account, node
      end
      for r = 1, resources do
        if amounts[r] > 0 then
          account[4 + 2 * r] = account[4 + 2 * r] - amounts[r]
        end
      end
      local mask, milli = unpack_values('<I2I2', record, 5)
      if mask > 0 then
        cards[node] = cards[node] or {unpack_values(CARDS_FORMAT, call('HGET', CARDS, node))}
        touched_cards[node] = true
        give_cards(cards[node], mask, milli)
      end
      local field = any_holds and hold_field(record)
      local is_held = field and (held[field] or call('HEXISTS', HOLDS, field) == 1)
      if is_held then
        held[field] = (held[field] or 0) + 1
      end
      local flags, group = unpack_values('<I2c8', record, 31)
      if group ~= NO_GROUP then
        local keys, on = is_held and untold_groups or groups, is_held and untold or leaving
        if not on[group] then
          on[group], keys[#keys + 1] = {}, group
        end
        on[group][#on[group] + 1] = node
      end
      if flags % 2 == HOLDS_PORTS then
        ports[node] = without(ports[node] or read_ports(node), uids[i])
      end
    end
  end
  if #released == 0 then
    return released
  end
  for from = 1, #released, STEP do
    call('HDEL', RESERVATIONS, unpack(released, from, math.min(from + STEP - 1, #released)))
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
  count_groups(-1, untold_groups, untold)
  end_holds(entry, held)
  for node, held in pairs(ports) do
    write_ports(node, held)
  end
  publish(seq, window, entry)
  return released
end
