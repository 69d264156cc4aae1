-- Pods that are said to stand where they stand already, of which the ledger has something else.

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
