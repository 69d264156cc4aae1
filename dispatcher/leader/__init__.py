"""Leader election: one dispatcher leads, and its term fences its writes."""
