-- Sets aside those of these pods' reservations that cannot be read, for whoever has found them otherwise.
--
-- args  uids
read_reservations(args.uids)
