"""The commands of hoss, one module for each theme: read options, ask the services, print the result."""
