-- Forgets removed nodes on which nothing is reserved any more: their indexes are free for new nodes.
--
-- args  nodes
--
-- Returns how many. META has the free indexes in 'free', 4 bytes each; the one that is free longest comes
-- first.

local function holds_nothing(account)
  for at = 6, #account - 2, 2 do
    if account[at] ~= 0 then
      return false
    end
  end
  return true
end

-- Whether a reservation is on the node. A pod that was only prepared may have been committed after the
-- reservations of the node were released.
local reserved
local function has_reservation(node)
  if not reserved then
    reserved = {}
    local held = call('HGETALL', RESERVATIONS)
    for i = 2, #held, 2 do
      reserved[held[i]:sub(1, 4)] = true
    end
  end
  return reserved[node]
end

-- A damaged or lost account does not say what is reserved.
local function is_empty(node)
  local record = call('HGET', ACCOUNTS, node)
  local account = record and read_account(record, 0)
  if account then
    return holds_nothing(account)
  end
  return not has_reservation(node)
end

local free = {}
for _, node in ipairs(args.nodes) do
  local name = call('HGET', REMOVED, node)
  if name and call('HEXISTS', PORTS, node) == 0 and is_empty(node) then
    call('HDEL', NAMES, name)
    for _, key in ipairs({ACCOUNTS, CARDS, SPECS, LABELS, VERSIONS, QUARANTINE, REMOVED}) do
      call('HDEL', key, node)
    end
    free[#free + 1] = node
  end
end
if #free > 0 then
  call('HSET', META, 'free', (call('HGET', META, 'free') or '') .. concat(free))
end
return #free
