"""Queue, policy, balance and membership, without input or output."""
