-- Validates prepared pods of any shard by what their worker knew (docs/adr/0012-guards-across-shards.md).
-- Runs on shard 0.
--
-- args  of_epoch: the worker's   seen: by shard, the seq up to which the worker knew it, u64
--       rules: their version here   may_refuse: this many may be refused, else nothing is recorded
--       pods: for each, in the order in which they were placed: constraints of its slot as in commit.lua, a
--         domain or false for each (none at all: it was not placed), its shard, the seq of its commit
--
-- Returns false if the rules have changed. Else `<u32 shard, u64 seq>` of what the worker did not know,
-- for each pod; seq 0: it knew everything.

if (meta[4] or '0') ~= args.rules then
  return false
end
epoch, seen = args.of_epoch, {unpack_values('<' .. rep('I8', shards), args.seen)}
local unknown, refused = {}, 0
-- They may have been raised, and versions forgotten, since the pods were prepared.
local below_on, below = below_low_watermarks()
for position, pod in ipairs(args.pods) do
  local of_slot, domains, shard, seq = unpack(pod)
  local there, newest = below_on, below
  if not newest or #domains == 0 then
    there, newest = unknown_to_worker(of_slot, domains, shard, seq)
  end
  if newest then
    refused = refused + 1
  end
  if newest or #domains == 0 then
    record_refused(of_slot)
  else
    record_placed(of_slot, domains, shard, seq)
  end
  unknown[position] = pack_values('<I4I8', there or 0, newest or 0)
end
if refused <= args.may_refuse then
  write_versions()
end
return concat(unknown)
