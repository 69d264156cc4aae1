"""The commands of hoss, one module a theme: options in, one call, output."""
