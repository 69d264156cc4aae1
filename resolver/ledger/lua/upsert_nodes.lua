-- Adds nodes or changes them by name. What is requested on them stays.
--
-- args  by node: names (each once)   specs: NodeSpec messages   unschedulable   card_counts
--       resource_versions (0: not known)   labels: a MessagePack map, or '' for none
--       allocatable: row by row, `resources` each
--       expected: the current NodeSpec of the only node (nil: any)
--
-- Returns the seq, indexes (u32 each), and the positions (from 0) of overcommitted nodes; or false if
-- the only node has another spec than `expected`.

local names, specs, labels, versions = args.names, args.specs, args.labels, args.resource_versions
local allocatable, card_counts, resources = args.allocatable, args.card_counts, args.resources
local seq, shards = last_seq + 1, tonumber(meta[3])
local shard = tonumber(META:match(':(%d+)}'))

if args.expected and call('HGET', SPECS, call('HGET', NAMES, names[1]) or '') ~= args.expected then
  return false
end

-- The index that is free longest, or else one that no node ever had.
local free = call('HGET', META, 'free') or ''
local free_at = 1
local function new_node(name)
  local node = free:sub(free_at, free_at + 3)
  if node ~= '' then
    free_at = free_at + 4
  else
    node = pack_values('<I4', (call('HINCRBY', META, 'next_index', 1) - 1) * shards + shard)
  end
  call('HSET', NAMES, name, node)
  return node
end

local function new_account(node)
  return read_account(rep('\0', HEAD_BYTES) .. spread(node), resources)
end

-- A node's cards after its card count becomes `count`. A card that goes away while pods hold it stays,
-- closed, until those pods leave.
local function resize_cards(used, count)
  if not used then
    used = {}
    for slot = 1, 16 do
      used[slot] = NO_CARD
    end
  end
  for slot = 1, 16 do
    local now = used[slot]
    local holds = now == NO_CARD and 0 or now % CLOSED_CARD
    if slot <= count then
      used[slot] = holds
    else
      used[slot] = holds > 0 and CLOSED_CARD + holds or NO_CARD
    end
  end
  return used
end

local function describe(node, position)
  call('HSET', SPECS, node, specs[position])
  if labels[position] ~= '' then
    call('HSET', LABELS, node, labels[position])
  else
    call('HDEL', LABELS, node)
  end
end

local touched, cards, touched_cards, records = {}, {}, {}, {}
local indexes, over, spec_entries = {}, {}, {}

local function upsert(position)
  local name, spec = names[position], specs[position]
  local known_node = call('HGET', NAMES, name)
  local node = known_node or new_node(name)
  indexes[position] = node
  local record = call('HGET', ACCOUNTS, node)
  local account = record and read_account(record, resources) or not known_node and new_account(node)
  local older = false
  if versions[position] > 0 then
    local known = tonumber(call('HGET', VERSIONS, node) or 0)
    older = versions[position] < known
    call('HSET', VERSIONS, node, string.format('%d', math.max(known, versions[position])))
  end
  if not account then
    -- A damaged or lost account is left to a repair, which goes by the spec: nobody knows what pods hold.
    if not older or call('HEXISTS', SPECS, node) == 0 then
      describe(node, position)
      call('HDEL', REMOVED, node)
    end
    return
  end
  local there = not has_flag(account, FLAG_GONE)
  if there and (older or call('HGET', SPECS, node) == spec) then
    if overcommitted(account) or has_flag(account, FLAG_SHRUNK) then
      over[#over + 1] = position - 1
    end
    return
  end
  if not known_node or has_flag(account, FLAG_GONE) then
    account[2] = seq
    set_flag(account, FLAG_GONE, false)
    -- Its quarantine may have ended while it was removed.
    set_flag(account, FLAG_QUARANTINED, call('HEXISTS', QUARANTINE, node) == 1)
    call('HDEL', REMOVED, node)
  end
  local exceeded = overcommitted(account)
  for at = 5, #account - 3, 2 do
    account[at] = 0
  end
  for r = 1, resources do
    account[3 + 2 * r] = allocatable[(position - 1) * resources + r]
  end
  local used = read_cards(node)
  -- A damaged record stays: nobody knows what pods hold of the cards, and nobody gets one.
  if used or card_counts[position] > 0 and call('HEXISTS', CARDS, node) == 0 then
    cards[node], touched_cards[node] = resize_cards(used, card_counts[position]), true
  end
  local exceeds = overcommitted(account) or has_closed_card(cards[node])
  -- Only a change of the node sets FLAG_SHRUNK. What was exceeded before is overcommitment, which an audit
  -- has to find.
  set_flag(account, FLAG_SHRUNK, exceeds and (has_flag(account, FLAG_SHRUNK) or not exceeded))
  set_flag(account, FLAG_UNSCHEDULABLE, args.unschedulable[position])
  account[1], account[4] = seq, seq % 2 ^ 32
  if exceeds then
    over[#over + 1] = position - 1
  end
  local done = #touched + 1
  touched[done], records[done] = node, write_account(account)
  spec_entries[done] = node .. pack_values('<I4', #spec) .. spec
  call('HSET', ACCOUNTS, node, records[done])
  describe(node, position)
end

for position = 1, #names do
  upsert(position)
end
if free_at > 1 then
  call('HSET', META, 'free', free:sub(free_at))
end
if #touched == 0 then
  return {last_seq, concat(indexes), over}
end
local entry = {'n', concat(touched), 'R', 0, 'a', '', 's', concat(spec_entries)}
entry[4], entry[6] = join_accounts(records)
append_cards(entry, touched, touched_cards, cards)
publish(seq, entry)
return {seq, concat(indexes), over}
