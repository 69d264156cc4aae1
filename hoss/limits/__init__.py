"""What strangers may take of a service: calls of each caller, and connections of an HTTP server. Whoever is
beyond that is refused before any handler runs."""
