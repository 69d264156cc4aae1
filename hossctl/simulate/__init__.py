"""Discrete-event simulation on the services' own cores: sizes and hours that no laptop holds, on a clock that nobody waits for."""
