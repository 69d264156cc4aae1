"""The pod index: which pods are where, and counters for queries about them."""
