"""The scheduling framework: extension points, profiles, plugin state, the sandbox for foreign plugins."""
