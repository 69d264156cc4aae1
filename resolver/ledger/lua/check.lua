-- Checks that the shard is there, and the one that the caller knows. Returns its seq and nonce.
return {last_seq, call('HGET', META, 'nonce') or ''}
