"""The web dashboard: what the dispatcher knows and how full the nodes are, for people with a browser.

It reads, once a second at most and only while somebody looks; a token lets it do what `hoss cordon` and `hoss drain` do.
See docs/adr/0033-dashboard.md.
"""
