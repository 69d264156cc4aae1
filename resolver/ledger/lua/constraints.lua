-- Placement constraints, for commit.lua (docs/adr/0010-groups-and-guards.md). A single shard validates
-- them here. With several shards this script only finds the domains, and validate.lua decides.

epoch, seen = tonumber(args.epoch), {unpack_values('<' .. rep('I8', shards), args.seen)}

local constrained, validated_here, queries = false, shards == 1, {}
local constraints_of, unknown_on_node, record_placement, hides_domain

do
  local NO_CONSTRAINTS, NO_LABELS = {}, {}
  local constraints, labels = args.constraints, {}
  constrained = #constraints > 0

  function constraints_of(slot)
    return constraints[slot + 1] or NO_CONSTRAINTS
  end

  -- The node's labels; false: the record was damaged. Then nobody knows the domains that the node is in.
  local function labels_of(node)
    local known = labels[node]
    if known == nil then
      local record, readable = call('HGET', LABELS, node), true
      known = NO_LABELS
      if record then
        readable, known = pcall(cmsgpack.unpack, record)
      end
      labels[node] = readable and type(known) == 'table' and known
      known = labels[node]
    end
    return known
  end

  -- Whether a pod of the slot may not go to the node, because its rules ask for labels that were damaged.
  function hides_domain(node, slot)
    local of_slot = constraints_of(slot)
    for i = 3, #of_slot, CONSTRAINT_VALUES do
      if of_slot[i] ~= '' and of_slot[i]:sub(1, 1) ~= '=' then
        return not labels_of(node)
      end
    end
    return false
  end

  local function domains_of(node, slot)
    -- Whoever is placed without validation is in no domain of a node with damaged labels.
    local known, domains, of_slot = labels_of(node) or NO_LABELS, {}, constraints_of(slot)
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
