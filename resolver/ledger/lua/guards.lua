-- Rules about other pods, as commit.lua asks about them (docs/adr/0010-groups-and-guards.md). On a single shard they are judged here.
-- With several only the domains are found here, and judge.lua decides.

epoch, seen = tonumber(ARGV[4]), {unpack_values('<' .. rep('I8', shards), ARGV[20])}

local guarded, judged_here, questions = false, shards == 1, {}
local guards_of, unknown_there, count_placed

do
  local NO_GUARDS, NO_LABELS = {}, {}
  local guards, labels = cmsgpack.unpack(ARGV[18]), {}
  guarded = #guards > 0

  function guards_of(slot)
    return guards[slot + 1] or NO_GUARDS
  end

  local function domains_of(node, slot)
    local known, domains, of_slot = labels[node], {}, guards_of(slot)
    if not known then
      local record = call('HGET', LABELS, node)
      known = record and cmsgpack.unpack(record) or NO_LABELS
      labels[node] = known
    end
    for i = 1, #of_slot, GUARD_VALUES do
      local topology_key = of_slot[i + 2]
      -- The first of a kind must know of every other, wherever: the whole cluster is one domain.
      domains[#domains + 1] = topology_key == '' and '' or known[topology_key] or false
    end
    return domains
  end

  -- What the worker did not know when it placed a pod of the slot there, as the seq at which it happened; nil: nothing.
  function unknown_there(node, slot)
    local of_slot, domains = guards_of(slot), domains_of(node, slot)
    for i = 1, #of_slot, GUARD_VALUES do
      local born = of_slot[i + 1]
      if domains[(i - 1) / GUARD_VALUES + 1] and of_slot[i + 4]:find('m') and born > seen[1] then
        return born
      end
    end
    local _, unknown = unknown_to_worker(of_slot, domains, 0, last_seq + 1)
    return unknown
  end

  -- A pod of the slot stands there, by that commit.
  function count_placed(position, node, slot, commit)
    if #guards_of(slot) > 0 then
      local domains = domains_of(node, slot)
      if judged_here then
        note_placed(guards_of(slot), domains, 0, commit)
      else
        questions[position] = {commit, domains}
      end
    end
  end
end
