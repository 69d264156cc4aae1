"""`hoss bench compare`: one scheduler, several without coordination, and several with HOSS, under the same
loads."""
