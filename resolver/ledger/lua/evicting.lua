-- Pods that have to go for another one of the batch (docs/adr/0011-preemption.md).

local evicting = ARGV[22] ~= '' and cmsgpack.unpack(ARGV[22]) or {}  -- by position: UIDs
local must_go = ARGV[23] == '1'
local evicted, evicted_uids, evictions = {}, {}, {}
local left_groups, left = {}, {}

-- What is done to make room for a pod, under one name: Lua takes 200 of them in a script.
local room = {restated = 0}  -- pods that were counted anew

-- The records of the victims if all of them stand on the node, for good, and are less urgent; else nil.
local function standing_victims(uids, node, priority)
  local records, any_holds = read_fields(RESERVATIONS, uids), call('HLEN', HOLDS) > 0
  for i = 1, #uids do
    local record = records[i]
    if not record or record:sub(1, 4) ~= node or unpack_values('<i4', record, 25) >= priority then
      return nil
    end
    if ARGV[25] == '1' and call('HEXISTS', PENDING, string.format('%d', (unpack_values('<I8', record, 9)))) == 0 then
      return nil
    end
    if any_holds and call('HEXISTS', HOLDS, hold_field(record)) == 1 then
      return nil
    end
  end
  return records
end

-- Gives an account what a pod held of its amounts.
function room.give_amounts(account, record)
  local resources, amounts = reserved_amounts(record)
  for r = 1, resources do
    account[4 + 2 * r] = account[4 + 2 * r] - amounts[r]
  end
end

-- A pod with this reservation counts no more among those of its group.
function room.count_left(record, node)
  local group = record:sub(33, 40)
  if group ~= NO_GROUP then
    if not left[group] then
      left[group], left_groups[#left_groups + 1] = {}, group
    end
    left[group][#left[group] + 1] = node
  end
end

-- They are gone, for that pod.
function room.note_eviction(uid, node, victims, records)
  evictions[#evictions + 1] = uid .. node .. pack_values('<I4', #victims) .. concat(victims)
  for i = 1, #victims do
    evicted[victims[i]], evicted_uids[#evicted_uids + 1] = true, victims[i]
    room.count_left(records[i], node)
  end
end

local function delete_evicted()
  for from = 1, #evicted_uids, STEP do
    call('HDEL', RESERVATIONS, unpack(evicted_uids, from, math.min(from + STEP - 1, #evicted_uids)))
  end
end
