"""Commands on what a platform holds: pods, jobs and cluster objects, from submission to deletion."""
