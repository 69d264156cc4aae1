-- KEYS  after the shard's own keys the one to fill
-- args  fields: and their values, in turn
--
-- Fills a hash that will replace one of the shard's.
write_fields(KEYS[#KEYS], args.fields)
