"""Clients of the dispatcher and the resolver."""
