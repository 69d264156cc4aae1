"""Scheduling policies: their rules, the compiled index of rules, and warnings about them."""
