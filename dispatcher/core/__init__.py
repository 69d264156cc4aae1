"""The dispatcher's state machine: what becomes of each pod, worker and node, without input or output."""
