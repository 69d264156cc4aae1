"""The worker's configuration document, kind WorkerConfig."""

import random
import socket
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from hoss.config import Document
from hoss.errors import ConfigError
from hoss.model.names import check_key, check_label_value
from hoss.telemetry.options import TelemetryConfig

KIND = "WorkerConfig"

# The label whose value picks the profile where none is configured.
STRATEGY_LABEL = "strategy"


class SyncMode(str, Enum):
    """How a worker's view hears of the ledger."""

    PUSH = "push"
    PULL = "pull"
    REFUSAL = "refusal"


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

    # What `profile`, or a worker's label `strategy`, calls it.
    name: str = Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")

    # What scores, and further filters.
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


class WorkerConfig(TelemetryConfig):
    """Flags override the document's fields."""

    # The name this worker registers with; one living worker may bear it. A restart under the same name fences its past.
    name: str = Field(
        default_factory=lambda: f"worker-{socket.gethostname()}", pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
    )

    # What policies match on.
    labels: dict[str, str] = Field(default_factory=dict)

    # host:port of the worker's own server, for health checks; port 0 takes a free one.
    listen: str = "127.0.0.1:0"

    # Where the dispatcher listens, host:port; of several, separated by commas or as dns:///NAME:PORT, one is active. And the
    # resolvers.
    dispatcher: str = "127.0.0.1:7100"
    resolvers: list[str] = Field(default=["127.0.0.1:7101"], min_length=1)

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

    # How its view of the nodes hears of the ledger: push takes every change as it happens, pull the state once an interval,
    # refusal the state at the start and then only what refusals say, and the state anew when pods find no node or wait for
    # news. For what each costs see docs/benchmarks.md.
    sync: SyncMode = SyncMode.PUSH

    # Between two readings of the state; with refusal the least. No reading takes less than a few milliseconds.
    pull_interval_ms: int = Field(default=100, ge=1, le=60_000)

    # Further nodes named with each choice; the ledger takes the first that fits.
    alternates: int = Field(default=2, ge=0, le=16)

    # Nodes looked at for a single pod of a class never met; 0: all there are, always. In clusters of less than twice as many it
    # makes no difference. (docs/adr/0034; kube-scheduler's percentageOfNodesToScore, for every pod, is 10 % of 5,000.)
    glance_nodes: int = Field(default=512, ge=0)

    # Proposals per pod before the dispatcher decides anew who should try.
    tries: int = Field(default=3, ge=1, le=100)

    # Takes no nodes but those with these labels, whatever a policy says; a policy's soft partition is then passed over.
    node_labels: dict[str, str] = Field(default_factory=dict)

    # Decision cost added to what placing takes: for each decision, that is what is placed and proposed together, and for each
    # pod of it. The worker waits for so long between placing and proposing, as a scheduler that thinks for longer would. For benchmarks.
    decision_job_ms: float = Field(default=0.0, ge=0, le=60_000, allow_inf_nan=False)
    decision_task_ms: float = Field(default=0.0, ge=0, le=50, allow_inf_nan=False)

    # A file: workers that name the same one take turns under one global lock on it, from placing to the ledger's answer. For
    # benchmarks.
    turns: Path | None = None

    # Ask for commits without validation, as uncoordinated schedulers do. For benchmarks; resolvers refuse it unless told.
    unchecked: bool = False

    @model_validator(mode="after")
    def _turns_follow(self) -> "WorkerConfig":
        if self.turns is not None and self.sync is not SyncMode.PUSH:
            raise ValueError("turns: a turn begins with a cache that has seen the last one, which takes sync: push")
        return self


def parse_labels(pairs: Iterable[str], *, where: str = "--label") -> dict[str, str]:
    """`key=value` each. InvalidInput for anything else, and for a key given twice."""
    labels: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"{pair!r} is not of the form key=value", where=where)
        check_key(key, where)
        check_label_value(value, f"{where} {key}")
        if key in labels:
            raise ConfigError(
                f"{key!r} is given twice, as {labels[key]!r} and as {value!r}; a label has one value", where=where
            )
        labels[key] = value
    return labels
