-- Domain versions (docs/adr/0012-guards-across-shards.md): for each rule, role and domain, and each shard,
-- the seq of the last pod in that role: of the worker epoch that placed a pod last, that epoch, and of all
-- other epochs. Either seq may be the larger one, because prepared pods are not validated in the order of
-- their seqs.
--
-- A slot's constraints are CONSTRAINT_VALUES values for each rule: see commit.lua. `domains` has the domain
-- for each, or false.

local epoch, seen  -- set by the caller: the worker's epoch; by shard, from 1, the seq up to which it knew it
local CONSTRAINT_VALUES = 6
local shards = tonumber(meta[3])
local below_low_watermarks, unknown_to_worker, record_placed, record_refused, write_versions

do
  local VERSION_FORMAT, NO_VERSION = '<' .. rep('I8I8I8', shards), rep('\0', 24 * shards)
  -- Of a damaged record. Nobody knows which placements it counted, so whoever relies on it is refused.
  local UNREADABLE = {}
  local versions, changed_versions, refused_rules = {}, {}, {}

  local function version_at(field)
    local version = versions[field]
    if not version then
      local record = call('HGET', DOMAIN_VERSIONS, field) or NO_VERSION
      version = #record == #NO_VERSION and {unpack_values(VERSION_FORMAT, record)} or UNREADABLE
      versions[field] = version
    end
    return version
  end

  -- Shard (from 0) and seq of the first low watermark that the worker has not seen; nil: it has seen all.
  -- What was recorded below them may be forgotten.
  function below_low_watermarks()
    local low_watermarks = meta[5] and {unpack_values('<' .. rep('I8', shards), meta[5])}
    for shard = 1, low_watermarks and shards or 0 do
      if low_watermarks[shard] > seen[shard] then
        return shard - 1, low_watermarks[shard]
      end
    end
  end

  -- Shard (from 0) and seq of what the worker did not know when it placed a pod, reserved by commit `seq`
  -- of `shard`; nil: it knew everything.
  function unknown_to_worker(of_slot, domains, shard, seq)
    for i = 1, #of_slot, CONSTRAINT_VALUES do
      local rule, _, _, _, relies_on, counts_on_matches = unpack(of_slot, i, i + CONSTRAINT_VALUES - 1)
      local domain = domains[(i - 1) / CONSTRAINT_VALUES + 1]
      if domain and counts_on_matches == 1 and refused_rules[rule] then
        return shard, seq  -- it counted on pods of this batch that were refused
      end
      for at = 1, domain and #relies_on or 0 do
        local version = version_at(rule .. relies_on:sub(at, at) .. domain)
        if version == UNREADABLE then
          return 0, last_seq  -- this is shard 0
        end
        for of_shard = 1, shards do
          local newest = version[3 * of_shard]
          if version[3 * of_shard - 1] ~= epoch then
            newest = math.max(newest, version[3 * of_shard - 2])
          end
          if newest > seen[of_shard] then
            return of_shard - 1, newest
          end
        end
      end
    end
  end

  local function set_version(field, shard, seq)
    local version, at = version_at(field), 3 * shard + 1
    if version ~= UNREADABLE and version[at + 1] ~= epoch then
      version[at], version[at + 1], version[at + 2] = seq, epoch, math.max(version[at], version[at + 2])
    elseif version ~= UNREADABLE then
      version[at] = math.max(version[at], seq)
    end
    changed_versions[field] = version
  end

  function record_placed(of_slot, domains, shard, seq)
    for i = 1, #of_slot, CONSTRAINT_VALUES do
      local rule, _, _, recorded_roles = unpack(of_slot, i, i + 3)
      local domain = domains[(i - 1) / CONSTRAINT_VALUES + 1]
      for at = 1, domain and #recorded_roles or 0 do
        local role = recorded_roles:sub(at, at)
        -- The use of a rule holds for every domain.
        set_version(rule .. role .. (role == 'u' and '' or domain), shard, seq)
      end
    end
  end

  function record_refused(of_slot)
    for i = 1, #of_slot, CONSTRAINT_VALUES do
      if of_slot[i + 3]:find('m') then
        refused_rules[of_slot[i]] = true
      end
    end
  end

  function write_versions()
    for field, version in pairs(changed_versions) do
      -- A damaged record stays damaged, and becomes another one: a repair that was planned before this change
      -- must not be written after it.
      local record = args.nonce
      if version ~= UNREADABLE then
        record = pack_values(VERSION_FORMAT, unpack(version, 1, 3 * shards))
      end
      call('HSET', DOMAIN_VERSIONS, field, record)
    end
  end
end
