"""`python -m tools.bench access`: what closed doors cost.

A check of a bearer token is measured in CPU time of this thread, as services make it: the files of keys and
of what is revoked are looked at each time. Throughput is that of platforms with and without mutual TLS (and
passwords of Redis) in turn: the two runs of a pair are seconds apart on one machine, so other load of the
machine mostly cancels out.

The JSON document (camel case):

    token                            firstMicros, cachedMicros (medians), goalMicros of the latter
    throughput                       null without pairs
        nodes, pods, workers, repeat
        secured, insecure            each: podsPerSecond, microsPerPod (CPU of all services), run by run
        ratio, cpuRatio              secured by insecure, medians over the pairs
        goalRatio                    of `ratio`
"""

import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from hoss.host import THIS_HOST
from hoss.security.authority import Authority
from hoss.security.identity import CallerKind, Identity, Role
from hoss.security.tokens import TokenVerifier
from hossctl.bench.throughput import ThroughputRun, ThroughputSetting, measure
from hossctl.console import Document
from hossctl.figures import median

GOAL_TOKEN_MICROS = 20.0
GOAL_RATIO = 0.9
_FIRST_CHECKS = 200
_BATCH_CHECKS = 1000
_BEARER = Identity(CallerKind.CLIENT, "bench", Role.SUBMIT, "bench")


@dataclass(frozen=True, slots=True)
class TokenCost:
    """CPU microseconds of a check."""

    first_micros: float  # its signature is verified
    cached_micros: float  # it was verified before

    def as_json(self) -> Document:
        """See the module's docstring."""
        return {
            "firstMicros": round(self.first_micros, 2),
            "cachedMicros": round(self.cached_micros, 3),
            "goalMicros": GOAL_TOKEN_MICROS,
        }

    def lines(self) -> list[tuple[str, object]]:
        """For people."""
        return [
            ("a token's first check", f"{self.first_micros:.0f} us"),
            ("each further one", f"{self.cached_micros:.2f} us, goal {GOAL_TOKEN_MICROS:g}"),
        ]


def measure_tokens(batches: int) -> TokenCost:
    """Of so many batches of 1,000 checks of a known token."""
    return asyncio.run(_measure_tokens(batches))


async def _measure_tokens(batches: int) -> TokenCost:
    with tempfile.TemporaryDirectory(prefix="hoss-bench-") as name:
        now = THIS_HOST.utc_now()
        authority = Authority.create(Path(name), now=now)
        tokens = [
            authority.create_token(_BEARER, now=now, lifetime=timedelta(hours=1))
            for _ in range(_FIRST_CHECKS + 1)
        ]
        verifier = TokenVerifier.of_directory(authority.directory, unix_clock=THIS_HOST.unix)
        known = tokens.pop()
        await verifier.identify(known)  # imports and reads the keys
        first = [await _cpu_seconds(verifier, text, 1) for text in tokens]
        cached = [await _cpu_seconds(verifier, known, _BATCH_CHECKS) for _ in range(batches)]
        return TokenCost(1e6 * median(first), 1e6 * median(cached))


async def _cpu_seconds(verifier: TokenVerifier, text: str, checks: int) -> float:
    """Of one of so many checks."""
    begun = time.thread_time()
    for _ in range(checks):
        await verifier.identify(text)
    return (time.thread_time() - begun) / checks


@dataclass(slots=True)
class TlsCost:
    """Runs of platforms with and without TLS, pair by pair."""

    setting: ThroughputSetting
    secured: list[ThroughputRun] = field(default_factory=list)
    insecure: list[ThroughputRun] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Throughput with TLS by that without: the median over the pairs."""
        return self._ratio(_rate)

    @property
    def cpu_ratio(self) -> float:
        """The same of the CPU time of a pod."""
        return self._ratio(_micros)

    def as_json(self) -> Document:
        """See the module's docstring."""
        return {
            "nodes": self.setting.nodes,
            "pods": self.setting.pods,
            "workers": self.setting.workers,
            "repeat": len(self.secured),
            "secured": _runs_json(self.secured),
            "insecure": _runs_json(self.insecure),
            "ratio": round(self.ratio, 4),
            "cpuRatio": round(self.cpu_ratio, 4),
            "goalRatio": GOAL_RATIO,
        }

    def lines(self) -> list[tuple[str, object]]:
        """For people."""
        pairs = f"the median of {len(self.secured)} pairs"
        return [
            *_runs_lines("with TLS", self.secured),
            *_runs_lines("without", self.insecure),
            ("throughput with TLS", f"{self.ratio:.2f} of that without, {pairs}; goal {GOAL_RATIO:g}"),
            ("CPU with TLS", f"{self.cpu_ratio:.2f} of that without, {pairs}"),
        ]

    def _ratio(self, figure: Callable[[ThroughputRun], float]) -> float:
        pairs = zip(self.secured, self.insecure, strict=True)
        return median([figure(secured) / figure(insecure) for secured, insecure in pairs])


def measure_tls(setting: ThroughputSetting, *, quiet: bool) -> TlsCost:
    """Run `setting.repeat` pairs; the order within a pair alternates."""
    cost = TlsCost(setting)
    for number in range(setting.repeat):
        for insecure in (False, True) if number % 2 == 0 else (True, False):
            runs = measure(replace(setting, repeat=1, insecure=insecure), quiet=quiet).runs
            (cost.insecure if insecure else cost.secured).extend(runs)
    return cost


def _rate(run: ThroughputRun) -> float:
    return run.placement.pods_per_second


def _micros(run: ThroughputRun) -> float:
    return 1e6 * sum(run.cpu_seconds.values()) / run.placement.bound


def _runs_json(runs: list[ThroughputRun]) -> Document:
    return {
        "podsPerSecond": [round(_rate(run), 1) for run in runs],
        "microsPerPod": [round(_micros(run), 3) for run in runs],
    }


def _runs_lines(name: str, runs: list[ThroughputRun]) -> list[tuple[str, object]]:
    rates, micros = [_rate(run) for run in runs], [_micros(run) for run in runs]
    return [
        (f"pods/s {name}", f"{median(rates):,.0f} ({', '.join(f'{rate:,.0f}' for rate in rates)})"),
        (f"CPU a pod {name}", f"{median(micros):.2f} us ({', '.join(f'{one:.2f}' for one in micros)})"),
    ]
