-- What a reservation holds, and how it returns to the node.

local RESERVATION_BYTES, NO_GROUP = 40, rep('\0', 8)
local HOLDS_PORTS, MOVE_TARGET, PRE_BINDS = 1, 4, 8  -- flags

local function reserved_amounts(record)
  local resources = (#record - RESERVATION_BYTES - SPREAD_BYTES) / 8
  return resources, {unpack_values('<' .. rep('i8', resources), record, RESERVATION_BYTES + 1)}
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
