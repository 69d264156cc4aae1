-- Validates one proposal batch and reserves what fits.
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

local COMMITTED, DUPLICATE, CONFLICT_RESOURCE, CONFLICT_PORT, CONFLICT_DEVICE, CONFLICT_TOPOLOGY = 1, 2, 3, 4, 5, 6
local NODE_GONE, NODE_UNSCHEDULABLE, STALE_EPOCH, GANG_ABORTED, CONFLICT_VERSION = 7, 8, 9, 10, 11
local NO_NODE = '\255\255\255\255'

local uids, first = cmsgpack.unpack(ARGV[9]), cmsgpack.unpack(ARGV[11])
local count = #uids

if call('HGET', WORKERS, ARGV[3]) ~= ARGV[4] then
  return {0, rep(string.char(STALE_EPOCH), count), concat(first), '', '', 0, '', '', '', '', last_seq, ''}
end

if ARGV[17] ~= '' and (meta[4] or '0') ~= ARGV[17] then
  return false
end

local slots, resources = cmsgpack.unpack(ARGV[10]), tonumber(ARGV[8])
local unchecked, held_back = ARGV[7] ~= '0', ARGV[21] == '1'
local snapshot_seq, seq = tonumber(ARGV[5]), last_seq + 1
local seq_bytes = pack_values('<I8', seq)

-- A worker that does not know what rules were forgotten by may have missed a pod that one of them was about.
local ignorance
local floors = ARGV[17] ~= '' and meta[5] and {unpack_values('<' .. rep('I8', shards), meta[5])}
for shard = 1, floors and shards or 0 do
  if floors[shard] > seen[shard] then
    ignorance = ignorance or floors[shard]
  end
end

-- What the pods of a slot share: places in the account and amounts asked there, in turn; the reservation's tail; cards.
local slot_format, slot_bytes = '<' .. rep('i8', resources), 16 + 8 * resources
local slot_stamp = seq_bytes .. pack_values('<I8', tonumber(ARGV[4]))
local wanted, tails, card_counts, card_millis = {}, {}, {}, {}
local definitions, claims, slot_groups, any_ports = {}, {}, {}, false
local groups = cmsgpack.unpack(ARGV[16])
for i = 1, #groups, 3 do
  local key, packed, asked = groups[i], groups[i + 2], {}
  for at = 1, #packed, CLAIM_BYTES do
    asked[#asked + 1] = packed:sub(at, at + CLAIM_BYTES - 1)
  end
  definitions[key], claims[key] = groups[i + 1], #asked > 0 and asked
  any_ports = any_ports or #asked > 0
end
local function open_slot(slot)
  local shared = ARGV[14]:sub(slot * slot_bytes + 1, (slot + 1) * slot_bytes)
  local asked, flat = {unpack_values(slot_format, shared, 17)}, {}
  for r = 1, resources do
    if asked[r] > 0 then
      flat[#flat + 1] = 3 + 2 * r
      flat[#flat + 1] = asked[r]
    end
  end
  tails[slot] = slot_stamp .. shared
  slot_groups[slot] = shared:sub(9, 16)
  card_counts[slot], card_millis[slot] = 0, 0
  if ARGV[15] ~= '' then
    card_counts[slot], card_millis[slot] = unpack_values('<I2I2', ARGV[15], slot * 4 + 1)
  end
  wanted[slot] = flat
  return flat
end

local function tolerates_cordon(slot)
  return floor(ARGV[14]:byte(slot * slot_bytes + 7) / 2) % 2 == 1
end

-- Accounts by node, false where there is none. Read at once for all first candidates, and once more for all alternates
-- if any pod needs one.
local accounts = {}
local function read_accounts(nodes)
  local records = read_fields(ACCOUNTS, nodes)
  for i = 1, #nodes do
    local node = nodes[i]
    if accounts[node] == nil then
      accounts[node] = records[i] and read_account(records[i], resources)
    end
  end
end
read_accounts(first)

local alternates, alternates_each = nil, tonumber(ARGV[12])
local function alternate(position, rank)
  if not alternates then
    alternates = cmsgpack.unpack(ARGV[13])
    read_accounts(alternates)
  end
  return alternates[(position - 1) * alternates_each + rank]
end

local cards = {}
local function cards_of(node)
  local used = cards[node]
  if used == nil then
    used = read_cards(node)
    cards[node] = used
  end
  return used
end
if ARGV[15] ~= '' then
  local records = read_fields(CARDS, first)
  for i = 1, count do
    if cards[first[i]] == nil then
      cards[first[i]] = records[i] and {unpack_values(CARDS_FORMAT, records[i])}
    end
  end
end

-- The cards a pod gets: the fullest that fit, of equal ones the first (hoss.model.fit.pick_cards). Where nothing is
-- checked the emptiest are taken, full or not. Returns the mask of chosen slots and how many there are.
local function pick_cards(used, want, milli)
  local mask, found, taken = 0, 0, {}
  local limit = unchecked and CLOSED_CARD - 1 - milli or WHOLE_CARD - milli
  while used and found < want do
    local best
    for slot = 1, 16 do
      local now = used[slot]
      if now <= limit and not taken[slot] then
        if not best or (unchecked and now < used[best]) or (not unchecked and now > used[best]) then
          best = slot
        end
      end
    end
    if not best then
      break
    end
    taken[best] = true
    mask, found = mask + 2 ^ (best - 1), found + 1
  end
  return mask, found
end

local function take_cards(used, mask, milli)
  for slot = 1, 16 do
    if floor(mask / 2 ^ (slot - 1)) % 2 == 1 then
      used[slot] = used[slot] + milli
    end
  end
end

local ports = {}
local function ports_of(node)
  local held = ports[node]
  if not held then
    held = read_ports(node)
    ports[node] = held
  end
  return held
end

-- Nil and the mask of cards where the node takes a pod of the slot; else the verdict, and resource, asked and free.
local function refusal(account, node, flat, slot)
  if not account or account[2] > snapshot_seq or has_flag(account, FLAG_GONE) then
    return NODE_GONE, 0, 0, 0
  end
  if not unchecked then
    local closed = account[3] ~= 0 and (has_flag(account, FLAG_UNSCHEDULABLE) or has_flag(account, FLAG_QUARANTINED))
    if closed and not tolerates_cordon(slot) then
      return NODE_UNSCHEDULABLE, 0, 0, 0
    end
    local changed = changed_since and changed_since(node, account)
    if changed then
      return CONFLICT_VERSION, 0, changed, 0
    end
    for i = 1, #flat, 2 do
      local at, asked = flat[i], flat[i + 1]
      -- Subtracted from allocatable: a shrunken node has requested > allocatable.
      local free = account[at] - account[at + 1]
      if asked > free then
        return CONFLICT_RESOURCE, (at - 5) / 2, asked, free
      end
    end
    local claimed = any_ports and claims[slot_groups[slot]]
    local port = claimed and taken_port(ports_of(node), claimed)
    if port then
      return CONFLICT_PORT, 0, port, 0
    end
    local unknown = slot_groups[slot] ~= NO_GROUP and ignorance
    unknown = unknown or guarded and judged_here and unknown_there(node, slot)
    if unknown then
      return CONFLICT_TOPOLOGY, 0, unknown, 0
    end
  end
  local want = card_counts[slot]
  if want == 0 then
    return nil, 0
  end
  local mask, found = pick_cards(cards_of(node), want, card_millis[slot])
  if found < want then
    return CONFLICT_DEVICE, 0, want, found
  end
  return nil, mask
end

local verdicts, chosen, conflicts, duplicates = {}, {}, {}, {}
local reservations, reserved_uids, taken = {}, {}, {}
local touched_nodes, touched_cards, touched_ports = {}, {}, {}
local placed_groups, placed = {}, {}
local refusing, refusing_nodes = {}, {}

local function refuse_from(node)
  if accounts[node] and not refusing[node] then
    refusing[node] = true
    refusing_nodes[#refusing_nodes + 1] = node
  end
end

-- The pod counts among those of its group, and holds the ports of its group.
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

local function reserve(position, node, slot, mask)
  local account, flat, uid = accounts[node], wanted[slot], uids[position]
  for i = 1, #flat, 2 do
    local at = flat[i] + 1
    account[at] = account[at] + flat[i + 1]
  end
  if unchecked then
    -- What exceeds from now on was not the node's doing: of a scheduler that does not look it stays to be found, of pods that
    -- stand there already it is reported, and the node gets nothing more.
    set_flag(account, FLAG_SHRUNK, ARGV[7] == '2' and (overcommitted(account) or has_flag(account, FLAG_SHRUNK)))
  end
  local held = '\0\0\0\0'
  if mask > 0 then
    take_cards(cards[node], mask, card_millis[slot])
    held = pack_values('<I2I2', mask, card_millis[slot])
    touched_cards[node] = true
  end
  if account[1] ~= seq then
    account[1] = seq
    touched_nodes[#touched_nodes + 1] = node
  end
  if slot_groups[slot] ~= NO_GROUP then
    count_in(slot_groups[slot], node, uid)
  end
  if guarded then
    count_placed(position, node, slot, seq)
  end
  taken[uid] = node
  local done = #reserved_uids + 1
  reserved_uids[done] = uid
  reservations[2 * done - 1] = uid
  reservations[2 * done] = node .. held .. tails[slot] .. account[#account - 1]
  verdicts[position], chosen[position] = COMMITTED, node
end

-- A node that has shrunk may have room for all it holds again.
local function fit_again(node)
  local account = accounts[node]
  if has_flag(account, FLAG_SHRUNK) then
    set_flag(account, FLAG_SHRUNK, overcommitted(account) or has_closed_card(cards_of(node)))
  end
end

-- Gives the node what pods with these reservations hold, if a pod of the slot fits then, and returns the mask of its cards; else
-- nil, and nothing has changed.
function room.make(node, holders, records, flat, slot)
  local account = accounts[node]
  local before, before_cards, before_ports = {unpack(account)}, cards[node], ports[node]
  local cards_left, ports_left
  for i = 1, #holders do
    room.give_amounts(account, records[i])
    local mask, milli = unpack_values('<I2I2', records[i], 5)
    if mask > 0 then
      cards_left = cards_left or {unpack(cards_of(node))}
      give_cards(cards_left, mask, milli)
    end
    if unpack_values('<I2', records[i], 31) % 2 == HOLDS_PORTS then
      ports_left = without(ports_left or ports_of(node), holders[i])
    end
  end
  cards[node], ports[node] = cards_left or cards[node], ports_left or ports[node]
  local verdict, mask = refusal(account, node, flat, slot)
  if verdict then
    accounts[node], cards[node], ports[node] = before, before_cards, before_ports
    return nil
  end
  touched_cards[node] = touched_cards[node] or cards_left and true
  touched_ports[node] = ports_left or touched_ports[node]
  return mask
end

-- Takes the pod's victims away if it fits then, and returns the mask of its cards; else nil, and nothing has changed.
function room.evict(position, node, flat, slot)
  local victims = evicting[position]
  local urgency = (unpack_values('<i4', tails[slot], 17))
  local records = accounts[node] and not held_back and standing_victims(victims, node, urgency)
  local mask = records and room.make(node, victims, records, flat, slot)
  if mask then
    room.note_eviction(uids[position], node, victims, records)
  end
  return mask or nil
end

-- Whether a reservation is of just what a pod of the slot asks for, and of its group.
function room.as_reserved(record, slot)
  local counted, amounts = reserved_amounts(record)
  local asked = {unpack_values(slot_format, tails[slot], 33)}
  for r = 1, math.max(counted, resources) do
    if (amounts[r] or 0) ~= (asked[r] or 0) then
      return false
    end
  end
  local mask, milli = unpack_values('<I2I2', record, 5)
  local held = 0
  for card = 0, 15 do
    held = held + floor(mask / 2 ^ card) % 2
  end
  local same_cards = held == card_counts[slot] and (held == 0 or milli == card_millis[slot])
  return same_cards and record:sub(33, 40) == slot_groups[slot]
end

-- A pod that stands where it is said to stand, and is something else than it was, is counted anew in one step: what it takes more
-- nobody else can have had in between. Whether it was.
function room.restate(position, node, record, slot)
  local flat = wanted[slot] or open_slot(slot)
  if not accounts[node] or record:sub(1, 4) ~= node or room.as_reserved(record, slot) then
    return false
  end
  if call('HLEN', HOLDS) > 0 and call('HEXISTS', HOLDS, hold_field(record)) == 1 then
    return false
  end
  local mask = room.make(node, {uids[position]}, {record}, flat, slot)
  if not mask then
    return false
  end
  room.count_left(record, node)
  room.restated = room.restated + 1
  fit_again(node)
  reserve(position, node, slot, mask)
  return true
end

local standing = read_fields(RESERVATIONS, uids)
for position = 1, count do
  local record, slot = standing[position], slots[position]
  if record and evicted[uids[position]] then
    record = nil
  end
  local anew = record and ARGV[7] == '2' and not taken[uids[position]] and room.restate(position, first[position], record, slot)
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
