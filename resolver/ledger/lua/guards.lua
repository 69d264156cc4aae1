-- Rules about other pods, as commit.lua asks about them (docs/adr/0010-groups-and-guards.md).
--
-- Stamps: when the last pod came that is something to a rule (its role) in a domain, of which worker epoch, and when the
-- last one of any other epoch.

local guards, epoch, snapshot_seq = cmsgpack.unpack(ARGV[18]), tonumber(ARGV[4]), tonumber(ARGV[5])
local seq = last_seq + 1  -- of this commit
local guarded = #guards > 0
local GUARD_VALUES, NO_LABELS = 6, {}
local labels, stamps, stamped, missed = {}, {}, {}, {}
local function domain_of(node, topology_key)
  local known = labels[node]
  if not known then
    local record = call('HGET', LABELS, node)
    known = record and cmsgpack.unpack(record) or NO_LABELS
    labels[node] = known
  end
  return known[topology_key]
end

local function stamp_at(field)
  local stamp = stamps[field]
  if not stamp then
    local record = call('HGET', STAMPS, field)
    stamp = record and {unpack_values('<I8I8I8', record)} or {0, 0, 0}
    stamps[field] = stamp
  end
  return stamp
end

-- What the worker did not know when it placed a pod of the slot there, as the seq at which it happened; nil: nothing.
local function unknown_to_worker(node, slot)
  local of_slot = guards[slot + 1]
  for i = 1, of_slot and #of_slot or 0, GUARD_VALUES do
    local rule, born, topology_key, _, relies_on, spreads = unpack(of_slot, i, i + GUARD_VALUES - 1)
    local domain = domain_of(node, topology_key)
    if domain and relies_on:find('m') and born > snapshot_seq then
      return born
    end
    if domain and spreads == 1 and missed[rule] then
      return seq  -- it counted on pods of this batch that were refused
    end
    for at = 1, domain and #relies_on or 0 do
      local stamp = stamp_at(rule .. relies_on:sub(at, at) .. domain)
      local newest = stamp[2] == epoch and stamp[3] or stamp[1]
      if newest > snapshot_seq then
        return newest
      end
    end
  end
end

local function note(node, slot)
  local of_slot = guards[slot + 1]
  for i = 1, of_slot and #of_slot or 0, GUARD_VALUES do
    local rule, _, topology_key, notes = unpack(of_slot, i, i + 3)
    local domain = domain_of(node, topology_key)
    for at = 1, domain and #notes or 0 do
      local field = rule .. notes:sub(at, at) .. domain
      local stamp = stamp_at(field)
      if stamp[2] ~= epoch then
        stamp[2], stamp[3] = epoch, stamp[1]
      end
      stamp[1] = seq
      stamped[field] = stamp
    end
  end
end

local function note_missed(slot)
  local of_slot = guards[slot + 1]
  for i = 1, of_slot and #of_slot or 0, GUARD_VALUES do
    if of_slot[i + 3]:find('m') then
      missed[of_slot[i]] = true
    end
  end
end

local function write_stamps()
  for field, stamp in pairs(stamped) do
    call('HSET', STAMPS, field, pack_values('<I8I8I8', stamp[1], stamp[2], stamp[3]))
  end
end
