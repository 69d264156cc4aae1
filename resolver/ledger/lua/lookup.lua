-- Looks pods up. What was prepared under an epoch that is fenced is aborted here: nobody may commit it any
-- more.
--
-- args  uids
--
-- Returns `<u32 node, u64 seq, u64 epoch, u8 state>` for each UID; node 0xFFFFFFFF: no reservation.
local PRE_BINDS = 16  -- a flag
local uids = args.uids
local records, any_prepared = read_reservations(uids), call('HLEN', PREPARED) > 0
local states, found, dead = {}, {}, {}

local function state_of(record)
  if terminating.is(record) then
    return STATE_TERMINATING
  end
  local field = commit_field(record)
  if not states[field] then
    local prepared = any_prepared and call('HEXISTS', PREPARED, field) == 1
    states[field] = prepared and STATE_PREPARED
      or call('HEXISTS', PENDING, field) == 1 and STATE_ASSUMED or STATE_CONFIRMED
  end
  return states[field]
end

local in_force
local function is_fenced(record)
  if not in_force then
    in_force = {}
    local workers = call('HGETALL', WORKERS)
    for i = 2, #workers, 2 do
      in_force[string.match(workers[i], '^%d+') or ''] = true
    end
  end
  return not in_force[string.format('%d', (unpack_values('<I8', record, 17)))]
end

for i = 1, #records do
  local record = records[i]
  local state = record and state_of(record)
  if state == STATE_ASSUMED and floor(record:byte(31) / PRE_BINDS) % 2 == 1 then
    state = STATE_PRE_BINDING
  end
  if state == STATE_PREPARED and is_fenced(record) then
    dead[#dead + 1], record = uids[i], nil
  end
  found[i] = record and record:sub(1, 4) .. record:sub(9, 24) .. string.char(state)
    or '\255\255\255\255' .. rep('\0', 16) .. string.char(STATE_NONE)
end
if #dead > 0 then
  release_pods(dead)
end
return concat(found)
