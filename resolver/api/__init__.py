"""The resolver's gRPC service and what it offers: proposals, nodes, the feed, audit, rebuilding."""
