-- Stamps (docs/adr/0012-guards-across-shards.md): when the last pod came, on each shard, that is something to a rule (its role)
-- in a domain, of the worker epoch that placed one last, and of any other. Pods that are held are not judged in the order of their
-- seqs, so either may be the younger one. One record a rule, role and domain.
--
-- A slot's guards are GUARD_VALUES values for each rule: see commit.lua. `domains` has the domain for each of them, or false.

local epoch, seen  -- whoever uses this sets them: the worker's epoch, and by shard, from 1, the seq up to which it knew it
local GUARD_VALUES = 6
local shards = tonumber(meta[3])
local unknown_to_worker, note_placed, note_missed, write_stamps

do
  local STAMP_FORMAT, NO_STAMP = '<' .. rep('I8I8I8', shards), rep('\0', 24 * shards)
  local stamps, stamped, missed = {}, {}, {}

  local function stamp_at(field)
    local stamp = stamps[field]
    if not stamp then
      stamp = {unpack_values(STAMP_FORMAT, call('HGET', STAMPS, field) or NO_STAMP)}
      stamps[field] = stamp
    end
    return stamp
  end

  -- Shard (from 0) and seq of what the worker did not know when it placed a pod, which is held by that commit of that
  -- shard; nil: nothing.
  function unknown_to_worker(of_slot, domains, shard, seq)
    for i = 1, #of_slot, GUARD_VALUES do
      local rule, _, _, _, relies_on, counts_on_matches = unpack(of_slot, i, i + GUARD_VALUES - 1)
      local domain = domains[(i - 1) / GUARD_VALUES + 1]
      if domain and counts_on_matches == 1 and missed[rule] then
        return shard, seq  -- it counted on pods of this batch that were refused
      end
      for at = 1, domain and #relies_on or 0 do
        local stamp = stamp_at(rule .. relies_on:sub(at, at) .. domain)
        for of_shard = 1, shards do
          local newest = stamp[3 * of_shard]
          if stamp[3 * of_shard - 1] ~= epoch then
            newest = math.max(newest, stamp[3 * of_shard - 2])
          end
          if newest > seen[of_shard] then
            return of_shard - 1, newest
          end
        end
      end
    end
  end

  local function set_stamp(field, shard, seq)
    local stamp, at = stamp_at(field), 3 * shard + 1
    if stamp[at + 1] ~= epoch then
      stamp[at], stamp[at + 1], stamp[at + 2] = seq, epoch, math.max(stamp[at], stamp[at + 2])
    else
      stamp[at] = math.max(stamp[at], seq)
    end
    stamped[field] = stamp
  end

  function note_placed(of_slot, domains, shard, seq)
    for i = 1, #of_slot, GUARD_VALUES do
      local rule, _, _, notes = unpack(of_slot, i, i + 3)
      local domain = domains[(i - 1) / GUARD_VALUES + 1]
      for at = 1, domain and #notes or 0 do
        local role = notes:sub(at, at)
        -- That it is in use at all holds for every domain.
        set_stamp(rule .. role .. (role == 'u' and '' or domain), shard, seq)
      end
    end
  end

  function note_missed(of_slot)
    for i = 1, #of_slot, GUARD_VALUES do
      if of_slot[i + 3]:find('m') then
        missed[of_slot[i]] = true
      end
    end
  end

  function write_stamps()
    for field, stamp in pairs(stamped) do
      call('HSET', STAMPS, field, pack_values(STAMP_FORMAT, unpack(stamp, 1, 3 * shards)))
    end
  end
end
