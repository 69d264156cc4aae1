-- Prolongs leases: none of these commits ends before lease_ms have passed. A longer lease stays as it is. A
-- prepared commit keeps its own lease, and a confirmed one has none.
--
-- args  lease_ms   uids   seqs: the commit of each, u64
--
-- Returns a byte for each pod: 1 if it holds what that commit reserved and the commit is not prepared, else
-- 0.

local records, held, prolonged = read_reservations(args.uids), {}, {}
local deadline = string.format('%d', leases.now() + args.lease_ms)
for i = 1, #records do
  local record, commit = records[i], args.seqs:sub(8 * i - 7, 8 * i)
  held[i] = '\0'
  if record and record:sub(9, 16) == commit then
    local field = commit_field(record)
    if call('HEXISTS', PREPARED, field) == 0 then
      held[i] = '\1'
      if not prolonged[field] and call('HEXISTS', PENDING, field) == 1 then
        prolonged[field] = true
        call('ZADD', LEASES, 'GT', deadline, field)
      end
    end
  end
end
return concat(held)
