-- Shared by the scripts about quarantine (docs/adr/0022-conflicts.md).

-- QUARANTINE has, by node, `<i64 since, i64 until>` (ms) and the reason.
local time = call('TIME')
local now_ms = time[1] * 1000 + floor(time[2] / 1000)

-- The account of a node that is not removed, else nil.
local function living(node)
  local record = call('HGET', ACCOUNTS, node)
  local account = record and read_account(record, 0)
  return account and not has_flag(account, FLAG_GONE) and account or nil
end

-- Writes nodes as changed now and adds them to the feed; `more` are further fields of the entry.
local function publish_nodes(nodes, accounts, more)
  local seq, records, cards, carded = last_seq + 1, {}, {}, {}
  for i = 1, #nodes do
    local node = nodes[i]
    accounts[i][1] = seq
    records[i] = write_account(accounts[i])
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
  publish(seq, entry)
  return seq
end
