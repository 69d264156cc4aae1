-- Victims: pods that are evicted for another pod of the batch (docs/adr/0011-preemption.md).

local evicting = args.victims or {}  -- by position: UIDs of the victims
local must_go = args.victims_must_go
local evicted, evicted_uids, evictions = {}, {}, {}

-- Functions that make room for a pod. One table, because Lua allows 200 local names in a script.
local room = {
  resized = 0,  -- number of resized pods
  kept = {}, shares = {}, nominated = {},  -- fields and values of RESERVATIONS, TERMINATING and NOMINATED
}

-- The victims' records if all of them are on the node, not prepared, and have a lower priority; else nil. Who
-- terminates already is no victim again. Neither is who waits for victims: their room is not free yet.
local function evictable_victims(uids, node, priority)
  local records, any_prepared = read_reservations(uids), call('HLEN', PREPARED) > 0
  local any_nominated = call('HLEN', NOMINATED) > 0
  for i = 1, #uids do
    local record = records[i]
    if not record or record:sub(1, 4) ~= node or unpack_values('<i4', record, 25) >= priority then
      return nil
    end
    if terminating.is(record) or any_nominated and call('HEXISTS', NOMINATED, uids[i]) == 1 then
      return nil
    end
    if args.victims_assumed and call('HEXISTS', PENDING, commit_field(record)) == 0 then
      return nil
    end
    if any_prepared and call('HEXISTS', PREPARED, commit_field(record)) == 1 then
      return nil
    end
  end
  return records
end

-- Records the eviction of victims for the pod `uid`.
function room.record_eviction(uid, node, victims, records)
  evictions[#evictions + 1] = uid .. node .. pack_values('<I4', #victims) .. concat(victims)
  for i = 1, #victims do
    if not args.victims_terminate then
      count_out(records[i], node)
      evicted[victims[i]], evicted_uids[#evicted_uids + 1] = true, victims[i]
    end
  end
end

-- The victims are on the node until they have ended: they keep what the pod does not take of their amounts.
-- Of each resource it takes what it asks for and the node did not have free before.
function room.keep(uid, node, victims, records, flat)
  local account, lacking, kept = accounts[node], {}, {}
  for i = 1, #victims do
    local resources, amounts = reserved_amounts(records[i])
    resources = math.min(resources, (#account - 6) / 2)  -- what the node never counted is damage
    kept[i] = {resources, amounts}
    for r = 1, resources do
      account[4 + 2 * r] = account[4 + 2 * r] + amounts[r]
    end
  end
  for i = 1, #flat, 2 do
    local at, asked = flat[i], flat[i + 1]
    lacking[(at - 3) / 2] = math.min(asked, math.max(0, asked - (account[at] - account[at + 1])))
  end
  for i = 1, #victims do
    local resources, amounts = unpack(kept[i])
    local share = {}
    for r = 1, resources do
      share[r] = math.min(amounts[r], lacking[r] or 0)
      lacking[r] = lacking[r] and lacking[r] - share[r]
      amounts[r] = amounts[r] - share[r]
      account[4 + 2 * r] = account[4 + 2 * r] - share[r]
    end
    local at = #room.kept
    room.kept[at + 1], room.kept[at + 2] = victims[i], terminating.record(records[i], resources, amounts)
    room.shares[at + 1] = victims[i]
    room.shares[at + 2] = uid .. pack_values('<' .. rep('i8', #share), unpack(share))
  end
  local at = #room.nominated
  room.nominated[at + 1], room.nominated[at + 2] = uid, concat(victims)
end

local function write_evicted()
  write_fields(RESERVATIONS, room.kept)
  write_fields(TERMINATING, room.shares)
  write_fields(NOMINATED, room.nominated)
  for from = 1, #evicted_uids, STEP do
    call('HDEL', RESERVATIONS, unpack(evicted_uids, from, math.min(from + STEP - 1, #evicted_uids)))
  end
end

-- Releases what these pods hold on the node if a pod of the slot fits then, and returns the mask of its
-- cards. Else nil, and nothing has changed.
function room.make(node, holders, records, flat, slot)
  local account = accounts[node]
  local before, before_cards, before_ports = {unpack(account)}, cards[node], ports[node]
  local cards_left, ports_left
  for i = 1, #holders do
    give_amounts(account, records[i])
    local mask, milli = unpack_values('<I2I2', records[i], 5)
    if mask > 0 and cards_of(node) then  -- else the record was damaged
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

-- Evicts the pod's victims if the pod fits then, and returns the mask of its cards. Else nil, and nothing
-- has changed. Cards and ports of victims that terminate are held by both until these have ended.
function room.evict(position, node, flat, slot)
  local victims = evicting[position]
  local urgency = (unpack_values('<i4', tails[slot], 17))
  local records = accounts[node] and not prepare_only and evictable_victims(victims, node, urgency)
  local before = {cards[node], ports[node], touched_cards[node], touched_ports[node]}
  local mask = records and room.make(node, victims, records, flat, slot)
  if mask then
    if args.victims_terminate then
      cards[node], ports[node], touched_cards[node], touched_ports[node] = unpack(before, 1, 4)
      room.keep(uids[position], node, victims, records, flat)
    end
    room.record_eviction(uids[position], node, victims, records)
  end
  return mask or nil
end
