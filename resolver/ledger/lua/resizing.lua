-- Resizing: existing pods whose reservation on the node differs from what they have now.

-- Whether a reservation equals what a pod of the slot asks for, and has its group.
function room.as_reserved(record, slot)
  local counted, amounts = reserved_amounts(record)
  local asked = {unpack_values(slot_format, tails[slot], 33)}
  for r = 1, math.max(counted, resources) do
    -- After the last amount of either comes the end of `struct.unpack`.
    if (r <= counted and amounts[r] or 0) ~= (r <= resources and asked[r] or 0) then
      return false
    end
  end
  local mask, milli = unpack_values('<I2I2', record, 5)
  local held_cards = 0
  for card = 0, 15 do
    held_cards = held_cards + floor(mask / 2 ^ card) % 2
  end
  local same_cards = held_cards == card_counts[slot] and (held_cards == 0 or milli == card_millis[slot])
  return same_cards and record:sub(33, 40) == slot_groups[slot]
end

-- Replaces the reservation of an existing pod in one step, so that nobody else can take the additional
-- room. Returns whether it did.
function room.resize(position, node, record, slot)
  local flat = needed[slot] or open_slot(slot)
  local elsewhere = not accounts[node] or record:sub(1, 4) ~= node
  if elsewhere or terminating.is(record) or room.as_reserved(record, slot) then
    return false
  end
  if call('HLEN', PREPARED) > 0 and call('HEXISTS', PREPARED, commit_field(record)) == 1 then
    return false
  end
  local mask = room.make(node, {uids[position]}, {record}, flat, slot)
  if not mask then
    return false
  end
  count_out(record, node)
  room.resized = room.resized + 1
  fit_again(node)
  reserve(position, node, slot, mask)
  return true
end
