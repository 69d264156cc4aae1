-- Begins every script: the shard's keys, the ledger's epoch, and how records are read and written.
--
-- KEYS  the shard's seventeen keys: as named below, and the nodes in quarantine (quarantining.lua).
-- ARGV  1: the epoch of the ledger the resolver knows, and the last seq of this shard that it has heard of. A script never
--       touches any other ledger, nor one that has lost what it had acknowledged.
--
-- Nodes are named by their index as 4 little-endian bytes, the very bytes that stand in messages and hash fields: no
-- script ever needs the number. Records are described in hoss/wire/account.py and docs/architecture.md.

local META, ACCOUNTS, CARDS, SPECS, NAMES, RESERVATIONS, PENDING, WORKERS, FEED = unpack(KEYS)
local PORTS, GROUPS, GROUP_PODS, LABELS, RULES, STAMPS, HOLDS = unpack(KEYS, 10)
local call, rep, concat, floor = redis.call, string.rep, table.concat, math.floor
local pack_values, unpack_values = struct.pack, struct.unpack

local meta = call('HMGET', META, 'epoch', 'seq', 'shards', 'rules', 'floors')
local known_epoch, heard_of = ARGV[1]:match('^(%S+) (%d+)$')
if meta[1] ~= known_epoch then
  return redis.error_reply('OTHERLEDGER ' .. (meta[1] or 'none'))
end
local last_seq = tonumber(meta[2])
if last_seq < tonumber(heard_of) then
  return redis.error_reply('WENTBACK ' .. meta[2] .. ' ' .. heard_of)
end

local FLAG_GONE, FLAG_UNSCHEDULABLE, FLAG_SHRUNK, FLAG_QUARANTINED = 1, 2, 4, 8
local HEAD_BYTES, AMOUNT_BYTES, SPREAD_BYTES = 24, 16, 7
local WHOLE_CARD, CLOSED_CARD, NO_CARD = 1000, 0x8000, 0xFFFF
local CARDS_FORMAT = '<' .. rep('I2', 16)

-- Lua keeps one copy of equal strings and finds it by a hash that looks at every 3rd or 4th byte of a record only, from
-- the last one backwards: the high bytes of little-endian numbers, equal in all records. A batch of 1,000 then has chains
-- of thousands of strings, and takes 11 us a pod instead of 3. So account and reservation records in Redis end with 7 bytes that the
-- hash does see: the second byte of the node's index six times, and its first.
local function spread(node)
  return rep(node:sub(2, 2), SPREAD_BYTES - 1) .. node:sub(1, 1)
end

-- An account as a table: 1 seq, 2 born, 3 flags, 4 described; of resource r (from 0) allocatable at 5 + 2r and requested
-- at 6 + 2r; then the spread, and one number that is no part of the account.
local account_formats = {}  -- by the number of values
local function account_format(values)
  local format = account_formats[values]
  if not format then
    format = '<I8I8I4I4' .. rep('i8i8', (values - 5) / 2) .. 'c' .. SPREAD_BYTES
    account_formats[values] = format
  end
  return format
end

-- A record of `resources` or more: one of fewer gets zeros.
local function widen(record, resources)
  local missing = resources - (#record - HEAD_BYTES - SPREAD_BYTES) / AMOUNT_BYTES
  if missing <= 0 then
    return record
  end
  return record:sub(1, -SPREAD_BYTES - 1) .. rep('\0', AMOUNT_BYTES * missing) .. record:sub(-SPREAD_BYTES)
end

local function read_account(record, resources)
  if #record < HEAD_BYTES + SPREAD_BYTES + AMOUNT_BYTES * resources then
    record = widen(record, resources)
  end
  return {unpack_values(account_format((#record - HEAD_BYTES - SPREAD_BYTES) / 8 + 5), record)}
end

local function write_account(account)
  local values = #account - 1
  return pack_values(account_format(values), unpack(account, 1, values))
end

local function has_flag(account, flag)
  return floor(account[3] / flag) % 2 == 1
end

local function set_flag(account, flag, wanted)
  if has_flag(account, flag) ~= wanted then
    account[3] = account[3] + (wanted and flag or -flag)
  end
end

local function overcommitted(account)
  for at = 5, #account - 3, 2 do
    if account[at + 1] > account[at] then
      return true
    end
  end
  return false
end

-- HMGET and HMSET in steps that `unpack` can take.
local STEP = 4000
local function read_fields(key, fields)
  if #fields <= STEP then
    return #fields > 0 and call('HMGET', key, unpack(fields)) or {}
  end
  local values = {}
  for from = 1, #fields, STEP do
    local part = call('HMGET', key, unpack(fields, from, math.min(from + STEP - 1, #fields)))
    for i = 1, #part do
      values[from + i - 1] = part[i]
    end
  end
  return values
end

local function write_fields(key, pairs_flat)
  for from = 1, #pairs_flat, STEP do
    call('HMSET', key, unpack(pairs_flat, from, math.min(from + STEP - 1, #pairs_flat)))
  end
end

-- Accounts of equal width, joined. Returns the number of resources and the bytes; each account keeps its spread.
local function join_accounts(records)
  local widest = 0
  for i = 1, #records do
    widest = math.max(widest, #records[i])
  end
  local resources = math.max(0, (widest - HEAD_BYTES - SPREAD_BYTES) / AMOUNT_BYTES)
  for i = 1, #records do
    records[i] = widen(records[i], resources)
  end
  return resources, concat(records)
end

-- One entry of the feed and the shard's new seq. `fields` is a flat list of field names and values.
local function publish(seq, window, fields)
  local text = string.format('%d', seq)
  call('HSET', META, 'seq', text)
  call('XADD', FEED, 'MAXLEN', '~', window, text .. '-0', unpack(fields))
end

local function read_cards(node)
  local record = call('HGET', CARDS, node)
  return record and {unpack_values(CARDS_FORMAT, record)} or false
end

-- Whether pods still hold a card that the node has no more: CLOSED_CARD and what they hold of it.
local function has_closed_card(used)
  for slot = 1, used and 16 or 0 do
    if used[slot] >= CLOSED_CARD and used[slot] ~= NO_CARD then
      return true
    end
  end
  return false
end

-- Writes the cards of those `nodes` that are in `changed`, and adds them to a feed entry.
local function append_cards(entry, nodes, changed, cards)
  if not next(changed) then
    return
  end
  local card_nodes, records, changes = {}, {}, {}
  for i = 1, #nodes do
    local node = nodes[i]
    if changed[node] then
      local record, at = pack_values(CARDS_FORMAT, unpack(cards[node], 1, 16)), #records + 1
      card_nodes[at], records[at] = node, record
      changes[2 * at - 1], changes[2 * at] = node, record
    end
  end
  write_fields(CARDS, changes)
  local at = #entry
  entry[at + 1], entry[at + 2], entry[at + 3], entry[at + 4] = 'k', concat(card_nodes), 'c', concat(records)
end
