-- Begins the scripts about nodes that disagree with what workers believe of them (docs/adr/0022-conflicts.md).

local QUARANTINE = KEYS[#KEYS]  -- by node `<i64 since, i64 until>` (ms) and the reason
local time = call('TIME')
local now_ms = time[1] * 1000 + floor(time[2] / 1000)

-- The account of a node that is there, else nil.
local function living(node)
  local record = call('HGET', ACCOUNTS, node)
  local account = record and read_account(record, 0)
  return account and not has_flag(account, FLAG_GONE) and account or nil
end

-- Writes the accounts of nodes as changed now, and tells the feed of them, with `more` in the entry.
local function tell(nodes, told, more)
  local seq, records, cards, carded = last_seq + 1, {}, {}, {}
  for i = 1, #nodes do
    local node = nodes[i]
    told[i][1] = seq
    records[i] = write_account(told[i])
    call('HSET', ACCOUNTS, node, records[i])
    cards[node] = read_cards(node)
    carded[node] = cards[node] and true or nil
  end
  local entry = {'n', concat(nodes), 'R', 0, 'a', ''}
  entry[4], entry[6] = join_accounts(records)
  append_cards(entry, nodes, carded, cards)
  for i = 1, #more do
    entry[#entry + 1] = more[i]
  end
  publish(seq, ARGV[2], entry)
  return seq
end
