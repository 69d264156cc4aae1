-- Conflict criteria beyond fit (docs/adr/0022-conflicts.md).
--
-- args  criteria: which change of a node since the worker's snapshot refuses its pods: '' none, 'version' any
--       that another epoch made, 'strict' any of its spec

-- The seq of a change of the node that refuses the proposal's pods, or nil. The function is nil if no
-- change does.
local changed_since
do  -- Lua allows 200 local names at once
  local HISTORY = 64  -- feed entries to read; for older snapshots every change counts

  -- Nodes that other epochs changed since the snapshot, with the seq of the last change; nil if the feed
  -- does not go back that far.
  local function changed_by_others(epoch, snapshot_seq)
    if last_seq - snapshot_seq > HISTORY then
      return nil
    end
    local entries = call('XRANGE', FEED, string.format('%d-0', snapshot_seq + 1), '+')
    if #entries < last_seq - snapshot_seq then
      return nil
    end
    local changed = {}
    for i = 1, #entries do
      local fields, nodes, by = entries[i][2], '', nil
      for at = 1, #fields, 2 do
        if fields[at] == 'n' then
          nodes = fields[at + 1]
        elseif fields[at] == 'w' then
          by = fields[at + 1]
        end
      end
      for at = 1, by ~= epoch and #nodes or 0, 4 do
        changed[nodes:sub(at, at + 3)] = snapshot_seq + i
      end
    end
    return changed
  end

  local function change_check(criteria, epoch, snapshot_seq)
    if criteria == 'strict' then
      return function(_, account)
        -- The account has the low half of the seq; the spec changed no later than the account did.
        local described = account[1] - (account[1] - account[4]) % 2 ^ 32
        return described > snapshot_seq and described
      end
    elseif criteria == 'version' then
      local read, changed = false, nil
      return function(node, account)
        if account[1] <= snapshot_seq then
          return nil
        end
        if not read then
          read, changed = true, changed_by_others(epoch, snapshot_seq)
        end
        return not changed and account[1] or changed and changed[node]
      end
    end
  end

  changed_since = change_check(args.criteria, args.epoch, args.snapshot_seq)
end
