"""`hoss bench compare`: one scheduler, several that nobody coordinates, and several with HOSS, on the same loads."""
