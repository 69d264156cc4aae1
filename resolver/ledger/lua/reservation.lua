-- What a reservation holds, and how it returns to the node.

local RESERVATION_BYTES, NO_GROUP = 40, rep('\0', 8)
local HOLDS_PORTS = 1  -- a flag

-- The reservations of these pods; false: none. A record that cannot be read is set aside, in DAMAGED: what it
-- holds is unknown, and it must not keep the others from being read. Its node counts it until a repair.
local function read_reservations(uids)
  local records, least = read_fields(RESERVATIONS, uids), RESERVATION_BYTES + SPREAD_BYTES
  for i = 1, #uids do
    local record = records[i]
    if record and (#record < least or (#record - least) % 8 ~= 0 or #uids[i] ~= UID_BYTES) then
      call('HSET', DAMAGED, uids[i], record)
      call('HDEL', RESERVATIONS, uids[i])
      records[i] = false
    end
  end
  return records
end

local function reserved_amounts(record)
  local resources = (#record - RESERVATION_BYTES - SPREAD_BYTES) / 8
  return resources, {unpack_values('<' .. rep('i8', resources), record, RESERVATION_BYTES + 1)}
end

-- Returns a pod's amounts to the account; but for those that its node never counted, because the record was
-- damaged.
local give_amounts
do
  local known = {}

  -- The amounts as a flat list of resources that are not 0 and their amounts, resources counted from 1. Pods
  -- of a batch are mostly equal, so what was unpacked once is remembered: the lists must not be changed.
  local function listed_amounts(record)
    local packed = record:sub(RESERVATION_BYTES + 1, -SPREAD_BYTES - 1)
    local found = known[packed]
    if not found then
      local resources, amounts = reserved_amounts(record)
      found = {}
      for r = 1, resources do
        if amounts[r] > 0 then
          found[#found + 1], found[#found + 2] = r, amounts[r]
        end
      end
      known[packed] = found
    end
    return found
  end

  function give_amounts(account, record)
    local amounts = listed_amounts(record)
    for at = 1, #amounts, 2 do
      local requested = 4 + 2 * amounts[at]
      if requested < #account - 1 then
        account[requested] = account[requested] - amounts[at + 1]
      end
    end
  end
end

-- Pods that were evicted and are on their nodes until they have ended. One table, for Lua allows 200 local
-- names.
local terminating = {}
do
  local FLAG = 8

  function terminating.is(record)
    return floor(record:byte(31) / FLAG) % 2 == 1
  end

  -- The record of such a pod that holds the first `resources` of these amounts.
  function terminating.record(record, resources, amounts)
    local flags = unpack_values('<I2', record, 31) + (terminating.is(record) and 0 or FLAG)
    return record:sub(1, 30) .. pack_values('<I2', flags) .. record:sub(33, RESERVATION_BYTES)
      .. pack_values('<' .. rep('i8', resources), unpack(amounts, 1, resources)) .. record:sub(-SPREAD_BYTES)
  end
end

local function give_cards(used, mask, milli)
  for slot = 1, 16 do
    if floor(mask / 2 ^ (slot - 1)) % 2 == 1 then
      used[slot] = used[slot] - milli
      if used[slot] == CLOSED_CARD then
        used[slot] = NO_CARD  -- the last pod left a card that the node has no more
      end
    end
  end
end

-- The ports held on a node, without those of a pod.
local function without(held, uid)
  local left = {}
  for i = 1, #held do
    if held[i]:sub(1, UID_BYTES) ~= uid then
      left[#left + 1] = held[i]
    end
  end
  return left
end
