"""The web dashboard: the dispatcher's state and the load of nodes, in a browser (docs/adr/0033-dashboard.md).

It reads state once a second at most, and only for viewers. With a token, viewers can cordon and drain.
"""
