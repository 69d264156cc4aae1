-- Judges pods that are held on any shard by what their worker knew (docs/adr/0012-guards-across-shards.md). Runs on shard 0.
--
-- ARGV  2 worker epoch   3 by shard: the seq up to which the worker knew it, u64   4 the version of the rules here
--       5 so many may be refused, else nothing is noted
--       6 of each pod, in the order in which they were placed: guards of its slot as in commit.lua, a domain or false for each
--         of them (or none at all: it has no place), its shard, the seq of its hold  (MessagePack)
-- Returns false where the rules are others by now. Else `<u32 shard, u64 seq>` of what the worker did not know, for each
-- pod; seq 0: nothing.

if (meta[4] or '0') ~= ARGV[4] then
  return false
end
epoch, seen = tonumber(ARGV[2]), {unpack_values('<' .. rep('I8', shards), ARGV[3])}
local unknown, refused = {}, 0
for position, pod in ipairs(cmsgpack.unpack(ARGV[6])) do
  local of_slot, domains, shard, seq = unpack(pod)
  local there, newest
  if #domains > 0 then
    there, newest = unknown_to_worker(of_slot, domains, shard, seq)
  end
  if newest then
    refused = refused + 1
  end
  if newest or #domains == 0 then
    note_missed(of_slot)
  else
    note_placed(of_slot, domains, shard, seq)
  end
  unknown[position] = pack_values('<I4I8', there or 0, newest or 0)
end
if refused <= tonumber(ARGV[5]) then
  write_stamps()
end
return concat(unknown)
