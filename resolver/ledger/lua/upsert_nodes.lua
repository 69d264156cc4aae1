-- Adds nodes or changes them by name. What is requested on them stays.
--
-- ARGV  2 feed window   3 R   4 names, each once   5 NodeSpec messages   6 allocatable, row by row (R each)
--       7 unschedulable (0 or 1)   8 cards   (4 to 8: MessagePack arrays)
--       9 the NodeSpec that the only node must have now, or '' for any
--      10 labels of each node, a MessagePack map or '' for none  (MessagePack array)
-- Returns the seq, indexes (u32 each), and the positions (from 0) of nodes that have less than what is requested on them; or
-- false when argument 9 did not hold.

local names, specs = cmsgpack.unpack(ARGV[4]), cmsgpack.unpack(ARGV[5])
local allocatable, closed = cmsgpack.unpack(ARGV[6]), cmsgpack.unpack(ARGV[7])
local card_counts, resources = cmsgpack.unpack(ARGV[8]), tonumber(ARGV[3])
local labels = cmsgpack.unpack(ARGV[10])
local seq, shards = last_seq + 1, tonumber(meta[3])
local shard = tonumber(META:match(':(%d+)}'))

if ARGV[9] ~= '' and call('HGET', SPECS, call('HGET', NAMES, names[1]) or '') ~= ARGV[9] then
  return false
end

local function new_node(name)
  local index = (call('HINCRBY', META, 'next_index', 1) - 1) * shards + shard
  local node = pack_values('<I4', index)
  call('HSET', NAMES, name, node)
  return node
end

local function new_account(node)
  return read_account(rep('\0', HEAD_BYTES) .. spread(node), resources)
end

-- A node's cards after it says that it has `count`. A card that goes while pods hold it stays, closed, until they leave.
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

local touched, cards, touched_cards, records = {}, {}, {}, {}
local indexes, over, spec_entries = {}, {}, {}

local function upsert(position)
  local name, spec = names[position], specs[position]
  local node = call('HGET', NAMES, name) or new_node(name)
  indexes[position] = node
  local record = call('HGET', ACCOUNTS, node)
  local account = record and read_account(record, resources) or new_account(node)
  if record and not has_flag(account, FLAG_GONE) and call('HGET', SPECS, node) == spec then
    if overcommitted(account) or has_flag(account, FLAG_SHRUNK) then
      over[#over + 1] = position - 1
    end
    return
  end
  if not record or has_flag(account, FLAG_GONE) then
    account[2] = seq
    set_flag(account, FLAG_GONE, false)
  end
  local exceeded = overcommitted(account)
  for at = 5, #account - 3, 2 do
    account[at] = 0
  end
  for r = 1, resources do
    account[3 + 2 * r] = allocatable[(position - 1) * resources + r]
  end
  local used = read_cards(node)
  if used or card_counts[position] > 0 then
    cards[node], touched_cards[node] = resize_cards(used, card_counts[position]), true
  end
  local exceeds = overcommitted(account) or has_closed_card(cards[node])
  -- What was exceeded before the node changed, unless by an earlier change, is overcommitment and stays to be found.
  set_flag(account, FLAG_SHRUNK, exceeds and (has_flag(account, FLAG_SHRUNK) or not exceeded))
  set_flag(account, FLAG_UNSCHEDULABLE, closed[position] == 1)
  account[1], account[4] = seq, seq % 2 ^ 32
  if exceeds then
    over[#over + 1] = position - 1
  end
  local done = #touched + 1
  touched[done], records[done] = node, write_account(account)
  spec_entries[done] = node .. pack_values('<I4', #spec) .. spec
  call('HSET', ACCOUNTS, node, records[done])
  call('HSET', SPECS, node, spec)
  if labels[position] ~= '' then
    call('HSET', LABELS, node, labels[position])
  else
    call('HDEL', LABELS, node)
  end
  if touched_cards[node] then
    call('HSET', CARDS, node, pack_values(CARDS_FORMAT, unpack(cards[node], 1, 16)))
  end
end

for position = 1, #names do
  upsert(position)
end
if #touched == 0 then
  return {last_seq, concat(indexes), over}
end
local entry = {'n', concat(touched), 'R', 0, 'a', '', 's', concat(spec_entries)}
entry[4], entry[6] = join_accounts(records)
append_cards(entry, touched, touched_cards, cards)
publish(seq, ARGV[2], entry)
return {seq, concat(indexes), over}
