"""What pods, nodes and resources are. Pure: no input or output, no clock, no randomness."""
