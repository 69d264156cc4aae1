-- Forgets rules: placements that concern only them are not recorded any more.
--
-- args  keys: of rules   low_watermark: of this shard
--
-- Returns the keys of the forgotten rules: registered before the low watermark and, as far as this shard
-- knows, used by no pod since. A damaged record stays until a repair. Takes a seq, as a registration does, so
-- that other resolvers read the rules again.

local asked, seq, forgotten = args.keys, last_seq + 1, {}
for i = 1, #asked do
  local record = call('HGET', RULES, asked[i])
  local born = record and #record >= 8 and unpack_values('<I8', record)
  if born and born <= args.low_watermark and call('HEXISTS', DOMAIN_VERSIONS, asked[i] .. 'u') == 0 then
    call('HDEL', RULES, asked[i])
    forgotten[#forgotten + 1] = asked[i]
  end
end
if #forgotten > 0 then
  call('HSET', META, 'rules', string.format('%d', seq))
  publish(seq, {'n', '', 'R', 0, 'a', ''})
end
return concat(forgotten)
