-- args  seqs: of commits
--
-- Ends the leases of commits; their reservations stay. A prepared commit keeps its lease: it was never
-- validated. That takes a seq, so that a ledger that loses it has visibly gone back; else the reservations
-- would end by their leases while their pods run.
--
-- Returns how many were assumed, and the shard's seq.
local fields, confirmed = {}, 0
for i = 1, #args.seqs do
  fields[i] = string.format('%d', args.seqs[i])
end
if call('HLEN', PREPARED) == 0 then
  call('ZREM', LEASES, unpack(fields))
  confirmed = call('HDEL', PENDING, unpack(fields))
else
  for _, field in ipairs(fields) do
    if call('HEXISTS', PREPARED, field) == 0 and leases.finish(field) then
      confirmed = confirmed + 1
    end
  end
end
if confirmed == 0 then
  return {0, last_seq}
end
publish(last_seq + 1, {'n', '', 'R', 0, 'a', ''})
return {confirmed, last_seq + 1}
