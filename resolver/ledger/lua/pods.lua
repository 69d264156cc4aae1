-- What pods hold besides amounts: the ports of their node, and membership in a group.

-- Ports that pods hold on a node: for each the pod's UID and a claim (resolver/core/values.py).
local UID_BYTES, CLAIM_BYTES, EVERY_ADDRESS = 16, 12, rep('\0', 8)
local function read_ports(node)
  local record, held = call('HGET', PORTS, node) or '', {}
  for at = 1, #record - UID_BYTES - CLAIM_BYTES + 1, UID_BYTES + CLAIM_BYTES do  -- without what was cut off
    held[#held + 1] = record:sub(at, at + UID_BYTES + CLAIM_BYTES - 1)
  end
  return held
end

local function write_ports(node, held)
  if #held > 0 then
    call('HSET', PORTS, node, concat(held))
  else
    call('HDEL', PORTS, node)
  end
end

-- Adds pods that came and pods that left to a feed entry: keys of groups, and for each key the nodes of
-- its pods and the definition.
local function append_groups(entry, came, came_to, came_definitions, left, left_from, left_definitions)
  local runs = {}
  local function append(sign, keys, nodes, definitions)
    for i = 1, #keys do
      local definition, on = definitions[keys[i]], nodes[keys[i]]
      runs[#runs + 1] = pack_values('<i4I4I4', sign, #definition, #on) .. definition .. concat(on)
    end
  end
  append(1, came, came_to, came_definitions)
  append(-1, left, left_from, left_definitions)
  if #runs > 0 then
    local at = #entry
    entry[at + 1], entry[at + 2] = 'p', concat(runs)
  end
end

-- Prepared commits: seq of the commit -> number of its pods. The feed shows the pods once they are
-- committed.
local function commit_field(record)
  return string.format('%d', (unpack_values('<I8', record, 9)))
end

local count_groups, end_prepared
do
  -- Nil: what is there is no number. It was damaged, and stays so until a repair, for nobody knows how many
  -- pods it counted. An error would leave half of the change written.
  local function add_to(key, field, amount)
    local value = redis.pcall('HINCRBY', key, field, amount)
    return type(value) == 'number' and value or nil
  end

  -- Pods of groups came (sign 1) or left (-1). `keys`: the groups' keys; `nodes`: for each key, the nodes of
  -- its pods. A group's definition is stored as long as the group has pods; `definitions` has those of new
  -- pods. Returns all definitions.
  function count_groups(sign, keys, nodes, definitions)
    local found = {}
    for i = 1, #keys do
      local key, on = keys[i], nodes[keys[i]]
      local pods = add_to(GROUP_PODS, key, sign * #on)
      found[key] = definitions and definitions[key] or call('HGET', GROUPS, key) or ''
      if sign > 0 and (not pods or pods == #on) then
        call('HSET', GROUPS, key, found[key])
      elseif pods == 0 then
        call('HDEL', GROUPS, key)
        call('HDEL', GROUP_PODS, key)
      end
    end
    return found
  end

  -- Takes these numbers of pods, by field, from prepared commits. Adds the commits without pods left to the
  -- feed entry, and returns their fields.
  function end_prepared(entry, pods)
    local over, packed = {}, {}
    for field, gone in pairs(pods) do
      local left = add_to(PREPARED, field, -gone)
      if left and left <= 0 then
        call('HDEL', PREPARED, field)
        over[#over + 1], packed[#packed + 1] = field, pack_values('<I8', tonumber(field) or 0)
      end
    end
    if #over > 0 then
      local at = #entry
      entry[at + 1], entry[at + 2] = 'e', concat(packed)
    end
    return over
  end
end

-- The number of the first claimed port that clashes with a held one: same port and protocol, and the same
-- address or one of them is every address.
local function taken_port(held, asked)
  for i = 1, #asked do
    local port, address = asked[i]:sub(1, 4), asked[i]:sub(5)
    for j = 1, #held do
      if held[j]:sub(17, 20) == port then
        local other = held[j]:sub(21)
        if other == address or other == EVERY_ADDRESS or address == EVERY_ADDRESS then
          return (unpack_values('<I2', port))
        end
      end
    end
  end
end
