-- The candidate nodes of a proposal, each read once, and the decision of a node on a pod.

-- Accounts by node; false: there is none. One read for all first candidates, and one more for the alternates
-- of each pod that needs one.
local accounts = {}
local function read_accounts(nodes)
  local records = read_fields(ACCOUNTS, nodes)
  for i = 1, #nodes do
    local node = nodes[i]
    if accounts[node] == nil then
      accounts[node] = records[i] and read_account(records[i], resources)
    end
  end
end
read_accounts(first)

local alternates_each, alternate = args.alternates_each, nil
do
  local alternates
  function alternate(position, rank)
    alternates = alternates or cmsgpack.unpack(args.alternates)
    local before = (position - 1) * alternates_each
    if rank == 1 then
      local unread = {}
      for at = before + 1, before + alternates_each do
        local node = alternates[at]
        if node == NO_NODE then
          break
        end
        if accounts[node] == nil then
          unread[#unread + 1] = node
        end
      end
      read_accounts(unread)
    end
    return alternates[before + rank]
  end
end

local cards = {}
local function cards_of(node)
  local used = cards[node]
  if used == nil then
    used = read_cards(node)
    cards[node] = used
  end
  return used
end
if args.cards then
  local records = read_fields(CARDS, first)
  for i = 1, count do
    if cards[first[i]] == nil then
      cards[first[i]] = records[i] and read_cards(first[i], records[i])
    end
  end
end

local ports = {}
local function ports_of(node)
  local held = ports[node]
  if not held then
    held = read_ports(node)
    ports[node] = held
  end
  return held
end

local function take_cards(used, mask, milli)
  for slot = 1, 16 do
    if floor(mask / 2 ^ (slot - 1)) % 2 == 1 then
      used[slot] = used[slot] + milli
    end
  end
end

-- Nil and the card mask if the node accepts a pod of the slot; else the verdict, and resource, asked and
-- free.
local refusal
do
  -- The pod's cards: the fullest that fit, and the first of equal ones (hoss.model.resources.pick_cards).
  -- Without validation: the emptiest, full or not. Returns the mask and the number of chosen cards.
  local function pick_cards(used, want, milli)
    local mask, found, taken = 0, 0, {}
    local limit = unchecked and CLOSED_CARD - 1 - milli or WHOLE_CARD - milli
    while used and found < want do
      local best
      for slot = 1, 16 do
        local now = used[slot]
        if now <= limit and not taken[slot] then
          if not best or (unchecked and now < used[best]) or (not unchecked and now > used[best]) then
            best = slot
          end
        end
      end
      if not best then
        break
      end
      taken[best] = true
      mask, found = mask + 2 ^ (best - 1), found + 1
    end
    return mask, found
  end

  function refusal(account, node, flat, slot)
    if not account or account[2] > snapshot_seq or has_flag(account, FLAG_GONE) then
      return VERDICT.NODE_GONE, 0, 0, 0
    end
    if not unchecked then
      local closed = account[3] ~= 0
        and (has_flag(account, FLAG_UNSCHEDULABLE) or has_flag(account, FLAG_QUARANTINED))
      if closed and not tolerates_cordon(slot) or constrained and hides_domain(node, slot) then
        return VERDICT.NODE_UNSCHEDULABLE, 0, 0, 0
      end
      local changed = changed_since and changed_since(node, account)
      if changed then
        return VERDICT.CONFLICT_VERSION, 0, changed, 0
      end
      for i = 1, #flat, 2 do
        local at, asked = flat[i], flat[i + 1]
        -- Compare before subtracting: a shrunken node can have requested > allocatable.
        local free = account[at] - account[at + 1]
        if asked > free then
          return VERDICT.CONFLICT_RESOURCE, (at - 5) / 2, asked, free
        end
      end
      local claimed = any_ports and claims[slot_groups[slot]]
      local port = claimed and taken_port(ports_of(node), claimed)
      if port then
        return VERDICT.CONFLICT_PORT, 0, port, 0
      end
      local unknown = slot_groups[slot] ~= NO_GROUP and below_watermark
      unknown = unknown or constrained and validated_here and unknown_on_node(node, slot)
      if unknown then
        return VERDICT.CONFLICT_TOPOLOGY, 0, unknown, 0
      end
    end
    local want = card_counts[slot]
    if want == 0 then
      return nil, 0
    end
    local mask, found = pick_cards(cards_of(node), want, card_millis[slot])
    if found < want then
      return VERDICT.CONFLICT_DEVICE, 0, want, found
    end
    return nil, mask
  end
end
