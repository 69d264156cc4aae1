"""Between hoss.v1 messages and the values of resolver.core."""
