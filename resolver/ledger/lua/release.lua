-- args  uids   seqs: of their reservations, u64 each (nil: any)
--       unconfirmed: only of commits that are not confirmed (nil: any)
--       as_of: the seq up to which the writer knew the shard; reservations that are newer stay (nil: any)
--
-- Returns the released UIDs, joined.
return concat((release_pods(args.uids, args.seqs, args.as_of, args.unconfirmed)))
