"""Histories of a platform: what clients sent, what watchers were told, every change of the ledger. Their
format (`events`), the recorder of live platforms (`recorder`), and the checker (`checker`), which shares no
code with the services. docs/reliability.md describes all three."""
