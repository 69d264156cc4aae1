-- Reserves room on nodes, in memory. Everything is written after all pods are decided.

local verdicts, chosen, conflicts, duplicates = {}, {}, {}, {}
local reservations, reserved_uids, taken = {}, {}, {}
local touched_nodes, touched_cards, touched_ports = {}, {}, {}
local placed_groups, placed = {}, {}  -- nodes by group
local left_groups, left = {}, {}  -- likewise
local refusing, refusing_nodes = {}, {}

local function refuse_from(node)
  if not refusing[node] and (accounts[node] or call('HEXISTS', SPECS, node) == 1) then
    refusing[node] = true
    refusing_nodes[#refusing_nodes + 1] = node
  end
end

-- The account of a refusing node, for the worker. One that is damaged or lost is blank, as in a snapshot
-- (resolver/ledger/stored.py): then the worker avoids the node until a repair.
local function shown_account(node, now)
  local account = accounts[node]
  if not account then
    account = read_account(rep('\0', HEAD_BYTES) .. spread(node), 0)
    account[1], account[3] = now, FLAG_QUARANTINED
  end
  return account
end

-- The pod joins its group, and holds the group's ports.
local function count_in(group, node, uid)
  local on = placed[group]
  if not on then
    on = {}
    placed[group], placed_groups[#placed_groups + 1] = on, group
  end
  on[#on + 1] = node
  if claims[group] then
    local held = ports_of(node)
    touched_ports[node] = held
    for _, claim in ipairs(claims[group]) do
      held[#held + 1] = uid .. claim
    end
  end
end

-- The pod with this reservation leaves its group.
local function count_out(record, node)
  local group = record:sub(33, 40)
  if group ~= NO_GROUP then
    if not left[group] then
      left[group], left_groups[#left_groups + 1] = {}, group
    end
    left[group][#left[group] + 1] = node
  end
end

local function touch(account, node)
  if account[1] ~= seq then
    account[1] = seq
    touched_nodes[#touched_nodes + 1] = node
  end
end

local function reserve(position, node, slot, mask)
  local account, flat, uid = accounts[node], needed[slot], uids[position]
  for i = 1, #flat, 2 do
    local at = flat[i] + 1
    account[at] = account[at] + flat[i + 1]
  end
  if unchecked then
    -- Without validation, overcommitment is not the node's doing: an audit has to find it. Only for
    -- existing pods it counts as if the node had shrunk: it is reported, and the node gets nothing more.
    local shrunk = args.existing and (overcommitted(account) or has_flag(account, FLAG_SHRUNK))
    set_flag(account, FLAG_SHRUNK, shrunk)
  end
  local held = '\0\0\0\0'
  if mask > 0 then
    take_cards(cards[node], mask, card_millis[slot])
    held = pack_values('<I2I2', mask, card_millis[slot])
    touched_cards[node] = true
  end
  touch(account, node)
  if slot_groups[slot] ~= NO_GROUP then
    count_in(slot_groups[slot], node, uid)
  end
  if constrained then
    record_placement(position, node, slot, seq)
  end
  taken[uid] = node
  local done = #reserved_uids + 1
  reserved_uids[done] = uid
  reservations[2 * done - 1] = uid
  reservations[2 * done] = node .. held .. tails[slot] .. account[#account - 1]
  verdicts[position], chosen[position] = VERDICT.COMMITTED, node
end

-- A shrunken node may have room for all its pods again.
local function fit_again(node)
  local account = accounts[node]
  if has_flag(account, FLAG_SHRUNK) then
    set_flag(account, FLAG_SHRUNK, overcommitted(account) or has_closed_card(cards_of(node)))
  end
end
