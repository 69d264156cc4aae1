-- Begins every script: the shard's keys, the ledger's epoch, and how records are read and written.
--
-- KEYS  the shard's keys, as named below.
-- ARGV  1: a MessagePack map, `args`. For every script it has who writes, and what the writer knows: `ledger`
--       (the epoch of the ledger); `known_seq`, the highest seq of this shard that the resolver knows, and
--       `known_nonce`, the nonce there (nil: unknown); `nonce` of this change; `window`, the number of feed
--       entries to keep; `term` of a dispatcher (0: not a dispatcher), and `journal_write`, the number of
--       its last write to the journal (nil: none); `epoch` (decimal) and `worker`, of a
--       worker (nil: not for a worker); `sending` of its proposal (nil: not a proposal). Each script says
--       what else it has.
--
-- `args` is the only argument of a script; resolver/ledger/packing.py makes it. Columns that a script always
-- reads are arrays in it; those that it may not need are strings, which are unpacked when they are needed.
--
-- This is the one place where a change is allowed or refused. A script touches no other ledger (OTHERLEDGER),
-- and none that has lost acknowledged changes, even if others have written to it since (WENTBACK). It obeys
-- no dispatcher after another one with a higher term (SUPERSEDED), and no worker whose epoch is over
-- (FENCED). It decides no proposal after one of the same epoch with a higher `sending` (OLDCOPY): the worker
-- may have been answered to a later copy, and may have placed the pods elsewhere.
--
-- A node's name is its index as 4 little-endian bytes, the same bytes as in messages and hash fields: no
-- script needs the number. hoss/wire/columns.py and docs/architecture.md describe the records.

local META, ACCOUNTS, CARDS, SPECS, NAMES, RESERVATIONS, PENDING, WORKERS, FEED = unpack(KEYS)
local PORTS, GROUPS, GROUP_PODS, LABELS, RULES, DOMAIN_VERSIONS, PREPARED = unpack(KEYS, 10)
local QUARANTINE, LEASES, VERSIONS, NONCES, REMOVED, MOVED, TERMINATING, NOMINATED, DAMAGED = unpack(KEYS, 17)
local call, rep, concat, floor = redis.call, string.rep, table.concat, math.floor
local pack_values, unpack_values = struct.pack, struct.unpack

local meta = call(
  'HMGET', META, 'epoch', 'seq', 'shards', 'rules', 'floors', 'lease_time', 'lease_seen', 'term',
  'nonce'
)
local last_seq = tonumber(meta[2])

-- NONCES has the nonces of the last changes, one after the other: reading one costs less than reading the
-- entry of the feed. resolver/ledger/stored.py has the same two numbers.
local NONCES_KEPT, NONCE_BYTES = 1024, 12
local args = cmsgpack.unpack(ARGV[1])
if meta[1] ~= args.ledger then
  return redis.error_reply('OTHERLEDGER ' .. (meta[1] or 'none'))
end
do
  local behind = last_seq - args.known_seq
  local went_back = behind < 0
  if args.known_nonce and behind == 0 then
    went_back = meta[9] ~= args.known_nonce
  elseif args.known_nonce and behind < NONCES_KEPT then  -- a shard that went back does not have it either
    local at = args.known_seq % NONCES_KEPT * NONCE_BYTES
    went_back = call('GETRANGE', NONCES, at, at + NONCE_BYTES - 1) ~= args.known_nonce
  end
  if went_back then
    return redis.error_reply(string.format('WENTBACK %d %d', last_seq, args.known_seq))
  end
  -- In WORKERS: the epoch, and if it is not 0, the highest `sending`.
  local stored = args.epoch and call('HGET', WORKERS, args.worker) or ''
  local sending = args.sending or 0
  if args.epoch and (stored ~= args.epoch or sending > 0) then
    local epoch, newest = string.match(stored, '^(%d+) (%d+)$')
    newest = tonumber(newest or 0)
    if (epoch or stored) ~= args.epoch then
      return redis.error_reply('FENCED ' .. meta[2])
    end
    if args.sending and sending < newest then
      return redis.error_reply('OLDCOPY ' .. meta[2])
    end
    if sending > newest then
      call('HSET', WORKERS, args.worker, string.format('%s %d', args.epoch, sending))
    end
  end
  local term = tonumber(meta[8] or 0)
  if args.term > 0 and args.term < term then
    return redis.error_reply('SUPERSEDED ' .. meta[8])
  end
  if args.term > term then
    call('HSET', META, 'term', string.format('%d', args.term))
  end
  if args.journal_write then
    local of, number = string.match(call('HGET', META, 'journal') or '0 0', '^(%d+) (%d+)$')
    of = tonumber(of)
    if args.term > of or args.journal_write > tonumber(number) then
      call('HSET', META, 'journal', string.format('%d %d', args.term, args.journal_write))
    end
  end
end

local FLAG_GONE, FLAG_UNSCHEDULABLE, FLAG_SHRUNK, FLAG_QUARANTINED = 1, 2, 4, 8
local HEAD_BYTES, AMOUNT_BYTES, SPREAD_BYTES = 24, 16, 7
local WHOLE_CARD, CLOSED_CARD, NO_CARD = 1000, 0x8000, 0xFFFF
local CARDS_FORMAT = '<' .. rep('I2', 16)

-- Lua interns strings. Its hash looks only at every 3rd or 4th byte of a record, from the last one
-- backwards: the high bytes of little-endian numbers, which are equal in all records. Then a batch of
-- 1,000 has hash chains of thousands of strings, and takes 11 us per pod instead of 3. So account and
-- reservation records end with 7 bytes that the hash does look at: the second byte of the node's index six
-- times, and its first.
local function spread(node)
  return rep(node:sub(2, 2), SPREAD_BYTES - 1) .. node:sub(1, 1)
end

-- An account as a table: 1 seq, 2 born, 3 flags, 4 described; allocatable of resource r (from 0) at 5 +
-- 2r, requested at 6 + 2r; then the spread, and one number (the end of `struct.unpack`) that is no part of
-- the account.
local read_account, write_account, join_accounts
do
  local formats = {}  -- by the number of values
  local function format_of(values)
    local format = formats[values]
    if not format then
      format = '<I8I8I4I4' .. rep('i8i8', (values - 5) / 2) .. 'c' .. SPREAD_BYTES
      formats[values] = format
    end
    return format
  end

  -- A record of at least `resources` resources; missing ones are zero.
  local function widen(record, resources)
    local missing = resources - (#record - HEAD_BYTES - SPREAD_BYTES) / AMOUNT_BYTES
    if missing <= 0 then
      return record
    end
    return record:sub(1, -SPREAD_BYTES - 1) .. rep('\0', AMOUNT_BYTES * missing) .. record:sub(-SPREAD_BYTES)
  end

  -- The account in a record; false: the record was damaged. Then nobody knows what the node offers and holds:
  -- it gets nothing until a repair, and what its pods held is not given back to it.
  function read_account(record, resources)
    local amounts = #record - HEAD_BYTES - SPREAD_BYTES
    if amounts < 0 or amounts % AMOUNT_BYTES ~= 0 then
      return false
    end
    if #record < HEAD_BYTES + SPREAD_BYTES + AMOUNT_BYTES * resources then
      record = widen(record, resources)
    end
    return {unpack_values(format_of((#record - HEAD_BYTES - SPREAD_BYTES) / 8 + 5), record)}
  end

  function write_account(account)
    local values = #account - 1
    return pack_values(format_of(values), unpack(account, 1, values))
  end

  -- Accounts, padded to equal width and joined. Returns the number of resources and the bytes, spreads
  -- included.
  function join_accounts(records)
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
end

local function has_flag(account, flag)
  return floor(account[3] / flag) % 2 == 1
end

local function set_flag(account, flag, value)
  if has_flag(account, flag) ~= value then
    account[3] = account[3] + (value and flag or -flag)
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

-- HMGET and HMSET in steps that `unpack` can handle.
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

-- Appends one entry to the feed, with the nonce of this change, and sets the shard's seq and nonce. `fields`:
-- a flat list of field names and values.
local function publish(seq, fields)
  local text = string.format('%d', seq)
  fields[#fields + 1], fields[#fields + 2] = 'o', args.nonce
  call('HMSET', META, 'seq', text, 'nonce', args.nonce)
  call('SETRANGE', NONCES, seq % NONCES_KEPT * NONCE_BYTES, args.nonce)
  call('XADD', FEED, 'MAXLEN', '~', args.window, text .. '-0', unpack(fields))
end

-- The cards of a node, by its record if the caller has that; false: it has none, or the record is damaged.
local function read_cards(node, record)
  record = record or call('HGET', CARDS, node)
  return record and #record == 32 and {unpack_values(CARDS_FORMAT, record)} or false
end

-- Whether pods still hold a card that the node no longer has: CLOSED_CARD plus what they hold of it.
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
