"""Cache, framework and placement, without input or output."""
