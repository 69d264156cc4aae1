"""HOSS compared with other schedulers on the same loads, for developers of HOSS."""
