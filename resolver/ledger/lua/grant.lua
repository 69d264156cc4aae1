-- ARGV  2 worker   3 epoch (decimal). A worker's epoch only grows. Returns the epoch that holds now.
local have = tonumber(call('HGET', WORKERS, ARGV[2]) or 0)
if tonumber(ARGV[3]) > have then
  have = tonumber(ARGV[3])
  call('HSET', WORKERS, ARGV[2], ARGV[3])
end
return have
