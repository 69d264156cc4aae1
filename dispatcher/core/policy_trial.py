"""What would become of a pod: the rules asked one by one, the workers held against the rule that decides, and the one chosen.

The answer comes from the code that routes and balances; only the words are made here. Nothing remembers that it was asked.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

from dispatcher.core.balance import Balancer, Chance, WorkerLoad
from dispatcher.core.dispatch import load_of
from dispatcher.core.membership import Worker, WorkerState
from dispatcher.core.policy import Algorithm, Facts, Fallback, Lane, Policy, Rule, Target, target

_WHY = {
    Algorithm.LEAST_OUTSTANDING: "the least estimated work in front of it",
    Algorithm.POWER_OF_TWO_CHOICES: "the least loaded of those drawn this time",
    Algorithm.WEIGHTED_ROUND_ROBIN: "its turn, by weight",
    Algorithm.CONSISTENT_HASH: "the class hashes to it, and its load is within the bound",
    Algorithm.RANDOM: "drawn this time",
}
_THEN = {Fallback.WAIT: "its pods wait", Fallback.NEXT_RULE: "next rule", Fallback.ANY_WORKER: "any worker"}


@dataclass(frozen=True, slots=True)
class RuleSaid:
    """Which field of a rule disagrees, or why it has no worker of its own; empty where it decides."""

    rule: str
    matches: bool
    why: str


@dataclass(frozen=True, slots=True)
class WorkerSaid:
    """Why a worker cannot have the pod; empty where it can."""

    load: WorkerLoad
    why: str


@dataclass(frozen=True, slots=True)
class Trial:
    """What came out. Without a worker the pod waits, for the reason given."""

    rule: Rule | None
    worker: str
    reason: str
    rules: tuple[RuleSaid, ...]
    workers: tuple[WorkerSaid, ...]


def try_pod(
    policy: Policy,
    lane: Lane,
    facts: Facts,
    workers: Sequence[Worker],
    *,
    balancers: Sequence[Balancer],
    chance: Chance,
) -> Trial:
    """A pod of these facts, which the policy puts in this lane. `balancers` stand beside the rules and are left as they are."""
    found = target(policy, lane, [worker.labels for worker in workers])
    rules = tuple(_rules_said(policy, lane, facts, found, workers))
    if found.rule is None:
        said = tuple(WorkerSaid(load_of(worker, ""), "no rule sends it the pod") for worker in workers)
        return Trial(None, "", found.problem, rules, said)
    rule = policy.rules[found.rule]
    said = tuple(
        WorkerSaid(
            load_of(worker, rule.balance.weight_label),
            _closed(worker) if i in found.workers else f"does not match {rule.workers}",
        )
        for i, worker in enumerate(workers)
    )
    open_to_it = [each.load for each in said if not each.why]
    if not open_to_it:
        return Trial(rule, "", found.problem or "no worker that fits takes pods now", rules, said)
    if len(open_to_it) == 1:
        return Trial(rule, open_to_it[0].name, "the only one that fits and takes pods now", rules, said)
    chosen = copy.deepcopy(balancers[found.rule]).choose(open_to_it, lane.bucket, chance)
    algorithm = rule.balance.algorithm
    return Trial(rule, open_to_it[chosen].name, f"{algorithm.value}: {_WHY[algorithm]}", rules, said)


def _rules_said(policy: Policy, lane: Lane, facts: Facts, found: Target, workers: Sequence[Worker]) -> list[RuleSaid]:
    said = []
    for number, rule in enumerate(policy.rules):
        if number not in lane.chain:
            said.append(RuleSaid(rule.name, matches=False, why=rule.match.mismatch(facts)))
            continue
        served = any(rule.workers.matches(worker.labels) for worker in workers)
        why = "" if served else f"no registered worker matches {rule.workers}: {_THEN[rule.fallback]}"
        said.append(RuleSaid(rule.name, matches=True, why=why))
        if number == found.rule:
            break
    return said


def _closed(worker: Worker) -> str:
    if worker.state is not WorkerState.READY:
        return f"is {worker.state.value}"
    if not worker.takes_work:
        return "is filling its cache"
    return "" if worker.credit else "has as many pods as it takes at once"
