"""The resolver's configuration document, kind ResolverConfig."""

from pydantic import Field

from hoss.config import Document

KIND = "ResolverConfig"


class ResolverConfig(Document):
    """Flags override the document's fields."""

    # host:port; port 0 takes a free one. Loopback unless said otherwise: the protocol has no authentication.
    listen: str = "127.0.0.1:7101"

    # Which Redis holds the ledger, with its database.
    redis_url: str = "redis://127.0.0.1:6379/0"

    # Shards of the ledger, fixed when it is made. One Redis serves one shard best; more are for Redis Cluster.
    shards: int = Field(default=1, ge=1, le=256)

    # Seconds a commit waits to be confirmed before it is taken back. Longer than a dispatcher takes to restart, short
    # enough that room held by lost messages comes back soon.
    reservation_lease_seconds: float = Field(default=30.0, gt=0, le=3600)

    # Seconds that a gang on several shards may hold room on some of them before it has all: many times what that takes, and
    # short, because nobody gains by it. Never more than the lease above.
    gang_hold_seconds: float = Field(default=5.0, gt=0, le=3600)
    # Seconds after which what rules about pods need to know of placements may be forgotten; a proposal that was made on an
    # older view of the cluster is refused then, where rules might see its pods.
    rules_memory_seconds: float = Field(default=300.0, gt=0, le=86400)

    # Seconds that a ledger which Redis has lost waits for a dispatcher to rebuild it, before an operator is asked to help.
    rebuild_wait_seconds: float = Field(default=30.0, gt=0, le=86400)

    # Entries kept for subscribers that reconnect; whoever is further behind gets a snapshot. An entry of 500 pods on as many
    # nodes is 60 KB, so this is up to 60 MB of Redis memory a shard, and some seconds of full load.
    feed_window_entries: int = Field(default=1000, ge=10, le=100_000)

    # Accept proposals that ask not to be validated. For benchmarks that show what overcommits without a ledger.
    allow_unchecked: bool = False
