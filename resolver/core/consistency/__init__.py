"""What a whole shard of the ledger must hold: checked (`audit`), made sound again from its reservations
(`repair`), and computed anew for a ledger that was lost (`contents`)."""
