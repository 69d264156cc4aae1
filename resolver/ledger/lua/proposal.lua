-- The arguments of a proposal, and whether it is decided at all. See commit.lua for `args`.

local NO_NODE = '\255\255\255\255'

local uids, first = args.uids, args.first
local count = #uids

if args.rules and (meta[4] or '0') ~= args.rules then
  return false
end

local slots, resources = args.slots, args.resources
local unchecked, prepare_only = args.unchecked, args.prepare_only
local snapshot_seq, seq = args.snapshot_seq, last_seq + 1
local seq_bytes = pack_values('<I8', seq)

-- A worker whose knowledge is below the low watermarks may have missed a pod that a forgotten rule was
-- about.
local below_watermark = args.rules and select(2, below_low_watermarks())

-- The definitions of new groups, and the port claims of those that hold ports.
local definitions, claims, any_ports = {}, {}, false
do
  local groups = args.groups
  for i = 1, #groups, 3 do
    local key, packed, asked = groups[i], groups[i + 2], {}
    for at = 1, #packed, CLAIM_BYTES do
      asked[#asked + 1] = packed:sub(at, at + CLAIM_BYTES - 1)
    end
    definitions[key], claims[key] = groups[i + 1], #asked > 0 and asked
    any_ports = any_ports or #asked > 0
  end
end

-- What the pods of a slot share: pairs of a position in the account and the amount asked there; the end of
-- the reservation; group; cards.
local needed, tails, slot_groups, card_counts, card_millis = {}, {}, {}, {}, {}
local tail_begins = seq_bytes .. pack_values('<I8', tonumber(args.epoch))
local slot_format, slot_bytes = '<' .. rep('i8', resources), 16 + 8 * resources
local function open_slot(slot)
  local shared = args.shared:sub(slot * slot_bytes + 1, (slot + 1) * slot_bytes)
  local asked, flat = {unpack_values(slot_format, shared, 17)}, {}
  for r = 1, resources do
    if asked[r] > 0 then
      flat[#flat + 1] = 3 + 2 * r
      flat[#flat + 1] = asked[r]
    end
  end
  tails[slot] = tail_begins .. shared
  slot_groups[slot] = shared:sub(9, 16)
  card_counts[slot], card_millis[slot] = 0, 0
  if args.cards then
    card_counts[slot], card_millis[slot] = unpack_values('<I2I2', args.cards, slot * 4 + 1)
  end
  needed[slot] = flat
  return flat
end

local function tolerates_cordon(slot)
  return floor(args.shared:byte(slot * slot_bytes + 7) / 2) % 2 == 1
end
