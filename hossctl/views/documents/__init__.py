"""Kinds of objects as documents, which `-o json` prints, with the columns of their tables. `objects` has
pods, nodes, workers, tenants and jobs, and the tables of most kinds."""
