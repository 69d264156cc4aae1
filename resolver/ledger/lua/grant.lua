-- args  name: of the worker   granted: the epoch   most: names that are remembered
--
-- Sets the worker's epoch, which never decreases. Returns the epoch in force. Where there are too many names,
-- a tenth of them is forgotten, those with the oldest epochs: they are fenced, and register again should they
-- live.
local function epoch_in(stored)
  return tonumber(string.match(stored or '', '^%d+') or 0)
end
local have = epoch_in(call('HGET', WORKERS, args.name))
if args.granted > have then
  have = args.granted
  call('HSET', WORKERS, args.name, string.format('%d', have))
end
if call('HLEN', WORKERS) > args.most then
  local flat, names, epochs = call('HGETALL', WORKERS), {}, {}
  for i = 1, #flat, 2 do
    names[#names + 1], epochs[flat[i]] = flat[i], epoch_in(flat[i + 1])
  end
  table.sort(names, function(one, other) return epochs[one] < epochs[other] end)
  for i = 1, #names - (args.most - math.floor(args.most / 10)) do
    call('HDEL', WORKERS, names[i])
  end
end
return have
