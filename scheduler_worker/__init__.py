"""The scheduler worker service: decides alone, on its own view of the nodes."""
