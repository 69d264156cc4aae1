"""What callers may take of a service: calls of each caller, and connections of an HTTP server. What is beyond
that is refused before any handler runs."""
