"""What people run: the hoss command, the local platform, benchmarks."""
