-- ARGV  2 feed window   3 UIDs (MessagePack array)   4 seqs, u64 each, or ''   Returns the UIDs released, joined.
return concat(give_back(ARGV[2], cmsgpack.unpack(ARGV[3]), ARGV[4] ~= '' and ARGV[4] or nil))
