-- KEYS  after the shard's own one to be filled   ARGV  2 fields and values (MessagePack array)
-- Fills a hash that will replace one of the shard's.
write_fields(KEYS[#KEYS], cmsgpack.unpack(ARGV[2]))
