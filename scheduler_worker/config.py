"""The worker's configuration document, kind WorkerConfig."""

import random
import socket
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field, field_validator

from hoss.config import Document
from hoss.errors import ConfigError
from hoss.model.names import check_key, check_label_value

KIND = "WorkerConfig"

# The label whose value picks the profile where none is configured.
STRATEGY_LABEL = "strategy"


class PluginSection(Document):
    """One plugin of a profile."""

    # As registered: one that comes with HOSS, or the name of an entry point in the group hoss.plugins.
    name: str

    # Of its score among the others; with 0 it only filters.
    weight: int = Field(default=1, ge=0, le=100)

    # The plugin's own; it checks them.
    args: dict[str, Any] = Field(default_factory=dict)


class ProfileSection(Document):
    """What a worker's nodes are scored by. All default filters apply besides, listed or not."""

    name: str = Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    plugins: tuple[PluginSection, ...]

    # Whom a pod takes of equally good nodes: the first in an order the worker keeps, or each pod another, drawn.
    ties: Literal["Fixed", "Drawn"] = "Fixed"

    @field_validator("plugins")
    @classmethod
    def _names_differ(cls, plugins: tuple[PluginSection, ...]) -> tuple[PluginSection, ...]:
        names = [plugin.name for plugin in plugins]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"plugins must differ; given more than once: {', '.join(twice)}")
        return plugins


class WorkerConfig(Document):
    """Flags override the document's fields."""

    # The name this worker registers with; one living worker may bear it. A restart under the same name fences its past.
    name: str = Field(
        default_factory=lambda: f"worker-{socket.gethostname()}", pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
    )

    # What policies match on.
    labels: dict[str, str] = Field(default_factory=dict)

    # host:port of the worker's own server, for health checks; port 0 takes a free one.
    listen: str = "127.0.0.1:0"

    # Where the dispatcher listens, host:port; of several, separated by commas, one is active. And the resolvers.
    dispatcher: str = "127.0.0.1:7100"
    resolvers: list[str] = Field(default_factory=lambda: ["127.0.0.1:7101"], min_length=1)

    # Seeds the order of equally good nodes; by default differs at every start, so that workers do not all want the same node.
    seed: int = Field(default_factory=lambda: random.SystemRandom().getrandbits(63), ge=0)

    # Pods it takes at once, sent and not answered. Left out: two full proposals, 2,000, so that one is placed while the
    # other is at the ledger; with a profile that packs pod by pod 100: what lies in a worker's hand is packed
    # without knowing what others do meanwhile, and those profiles are slow enough to be kept busy by less.
    window: int | None = Field(default=None, ge=1, le=100_000)

    # How nodes are chosen: the name of one of `profiles` or of a preset. Left out, it is the value of the label
    # `strategy` where that names one, else spread; so a worker that policies know as strategy=binpack packs.
    profile: str | None = None

    # Profiles of one's own, besides the presets.
    profiles: tuple[ProfileSection, ...] = ()

    # Further nodes named with each choice; the ledger takes the first that fits.
    alternates: int = Field(default=2, ge=0, le=16)

    # Proposals per pod before the dispatcher decides anew who should try.
    tries: int = Field(default=3, ge=1, le=100)

    # Ask for commits without validation, as uncoordinated schedulers do. For benchmarks; resolvers refuse it unless told.
    unchecked: bool = False


def parse_labels(pairs: Iterable[str]) -> dict[str, str]:
    """`key=value` each. InvalidInput for anything else, and for a key given twice."""
    labels: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"{pair!r} is not of the form key=value", where="--label")
        check_key(key, "--label")
        check_label_value(value, f"--label {key}")
        if key in labels:
            raise ConfigError(
                f"{key!r} is given twice, as {labels[key]!r} and as {value!r}; a label has one value", where="--label"
            )
        labels[key] = value
    return labels
