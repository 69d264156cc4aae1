"""`hoss bench`: what a platform achieves on this machine, and schedulers compared."""
