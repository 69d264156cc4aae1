-- Placement constraints, for commit.lua (docs/adr/0010-groups-and-guards.md). A single shard validates
-- them here. With several shards this script only finds the domains, and validate.lua decides.

epoch, seen = tonumber(args.epoch), {unpack_values('<' .. rep('I8', shards), args.seen)}

local constrained, validated_here, queries = false, shards == 1, {}
local constraints_of, unknown_on_node, record_placement

do
  local NO_CONSTRAINTS, NO_LABELS = {}, {}
  local constraints, labels = args.constraints, {}
  constrained = #constraints > 0

  function constraints_of(slot)
    return constraints[slot + 1] or NO_CONSTRAINTS
  end

  local function domains_of(node, slot)
    local known, domains, of_slot = labels[node], {}, constraints_of(slot)
    if not known then
      local record = call('HGET', LABELS, node)
      known = record and cmsgpack.unpack(record) or NO_LABELS
      labels[node] = known
    end
    for i = 1, #of_slot, CONSTRAINT_VALUES do
      local topology_key = of_slot[i + 2]
      if topology_key:sub(1, 1) == '=' then  -- the pod brings its domain: the name of what it takes
        domains[#domains + 1] = topology_key:sub(2)
      else
        -- The first pod of a kind must know of every other pod of it: the whole cluster is one domain.
        domains[#domains + 1] = topology_key == '' and '' or known[topology_key] or false
      end
    end
    return domains
  end

  -- The seq of what the worker did not know when it placed a pod of the slot on the node; nil: it knew
  -- everything.
  function unknown_on_node(node, slot)
    local of_slot, domains = constraints_of(slot), domains_of(node, slot)
    for i = 1, #of_slot, CONSTRAINT_VALUES do
      local born = of_slot[i + 1]
      if domains[(i - 1) / CONSTRAINT_VALUES + 1] and of_slot[i + 4]:find('m') and born > seen[1] then
        return born
      end
    end
    local _, unknown = unknown_to_worker(of_slot, domains, 0, last_seq + 1)
    return unknown
  end

  -- Records a pod of the slot on the node, placed by that commit.
  function record_placement(position, node, slot, commit)
    if #constraints_of(slot) > 0 then
      local domains = domains_of(node, slot)
      if validated_here then
        record_placed(constraints_of(slot), domains, 0, commit)
      else
        queries[position] = {commit, domains}
      end
    end
  end
end
