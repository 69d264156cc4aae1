"""Commands on what a platform holds: pods, jobs and cluster objects, submitted, listed, explained, deleted."""
