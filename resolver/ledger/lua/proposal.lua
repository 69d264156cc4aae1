-- What a proposal asks for, and whether it is heard at all: see commit.lua for ARGV.

local COMMITTED, DUPLICATE, CONFLICT_RESOURCE, CONFLICT_PORT, CONFLICT_DEVICE, CONFLICT_TOPOLOGY = 1, 2, 3, 4, 5, 6
local NODE_GONE, NODE_UNSCHEDULABLE, STALE_EPOCH, GANG_ABORTED, CONFLICT_VERSION = 7, 8, 9, 10, 11
local NO_NODE = '\255\255\255\255'

local uids, first = cmsgpack.unpack(ARGV[9]), cmsgpack.unpack(ARGV[11])
local count = #uids

if call('HGET', WORKERS, ARGV[3]) ~= ARGV[4] then
  return {0, rep(string.char(STALE_EPOCH), count), concat(first), '', '', 0, '', '', '', '', last_seq, ''}
end

if ARGV[17] ~= '' and (meta[4] or '0') ~= ARGV[17] then
  return false
end

local slots, resources = cmsgpack.unpack(ARGV[10]), tonumber(ARGV[8])
local unchecked, held_back = ARGV[7] ~= '0', ARGV[21] == '1'
local snapshot_seq, seq = tonumber(ARGV[5]), last_seq + 1
local seq_bytes = pack_values('<I8', seq)

-- A worker that does not know what rules were forgotten by may have missed a pod that one of them was about.
local ignorance
if ARGV[17] ~= '' and meta[5] then
  local floors = {unpack_values('<' .. rep('I8', shards), meta[5])}
  for shard = 1, shards do
    if floors[shard] > seen[shard] then
      ignorance = ignorance or floors[shard]
    end
  end
end

-- Of groups that are new their definitions; of those that hold ports their claims.
local definitions, claims, any_ports = {}, {}, false
do
  local groups = cmsgpack.unpack(ARGV[16])
  for i = 1, #groups, 3 do
    local key, packed, asked = groups[i], groups[i + 2], {}
    for at = 1, #packed, CLAIM_BYTES do
      asked[#asked + 1] = packed:sub(at, at + CLAIM_BYTES - 1)
    end
    definitions[key], claims[key] = groups[i + 1], #asked > 0 and asked
    any_ports = any_ports or #asked > 0
  end
end

-- What the pods of a slot share: places in the account and amounts asked there, in turn; the reservation's tail; group; cards.
local wanted, tails, slot_groups, card_counts, card_millis = {}, {}, {}, {}, {}
local tail_begins = seq_bytes .. pack_values('<I8', tonumber(ARGV[4]))
local slot_format, slot_bytes = '<' .. rep('i8', resources), 16 + 8 * resources
local function open_slot(slot)
  local shared = ARGV[14]:sub(slot * slot_bytes + 1, (slot + 1) * slot_bytes)
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
  if ARGV[15] ~= '' then
    card_counts[slot], card_millis[slot] = unpack_values('<I2I2', ARGV[15], slot * 4 + 1)
  end
  wanted[slot] = flat
  return flat
end

local function tolerates_cordon(slot)
  return floor(ARGV[14]:byte(slot * slot_bytes + 7) / 2) % 2 == 1
end
