"""The dashboard of a platform: a process of its own that is a client like any other, and shows what it reads
in a browser (docs/adr/0082-dashboard-process.md).

It owns its viewers' sessions, and an hour of history in memory. It writes nothing but what viewers ask for,
with the rights that they have."""
