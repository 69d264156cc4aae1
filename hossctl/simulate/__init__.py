"""Discrete-event simulation with the services' own cores, on virtual time: for sizes and durations that no
laptop can run."""
