-- Removes keys in a step that does not grow with them: another thread of the server frees their memory. Redis
-- would do it within DEL, and within a RENAME to a key that is there. An account that was made for an earlier
-- release has no right to UNLINK; then DEL does it.
local function unlink(...)
  local reply = redis.pcall('UNLINK', ...)
  if type(reply) == 'table' and reply.err then
    redis.call('DEL', ...)
  end
end
