"""The journal in Redis: what a new leader must know of earlier terms."""
