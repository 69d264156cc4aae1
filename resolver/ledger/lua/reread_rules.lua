-- Takes a seq for rules that were damaged: from now on this shard decides nothing by the rules that resolvers
-- know, until they have read them again. Else some would count them as registered, and others as forgotten.
--
-- Returns the seq.

local seq = last_seq + 1
call('HSET', META, 'rules', string.format('%d', seq))
publish(seq, {'n', '', 'R', 0, 'a', ''})
return seq
