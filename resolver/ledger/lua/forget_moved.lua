-- The sources of these moves are released.
--
-- args  uids   sources: node and commit of each, as noted
for i = 1, #args.uids do
  if call('HGET', MOVED, args.uids[i]) == args.sources[i] then
    call('HDEL', MOVED, args.uids[i])
  end
end
