"""A dry run of the policy for one pod: each rule's result, each worker's result, and the worker chosen. It
uses the routing and balancing of real pods and changes no state."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

from dispatcher.core.dispatch.balance import Balancer, Chance, WorkerLoad
from dispatcher.core.dispatch.batches import load_of
from dispatcher.core.dispatch.routing import workers_taking_work
from dispatcher.core.policy.rules import Algorithm, Facts, Fallback, Policy, Rule, SubQueue, Target, target
from dispatcher.core.workers.membership import Worker, WorkerState

_WHY = {
    Algorithm.LEAST_OUTSTANDING: "the least estimated work in front of it",
    Algorithm.POWER_OF_TWO_CHOICES: "the least loaded of those drawn this time",
    Algorithm.WEIGHTED_ROUND_ROBIN: "its turn, by weight",
    Algorithm.CONSISTENT_HASH: "the class hashes to it, and its load is within the bound",
    Algorithm.RANDOM: "drawn this time",
}
_THEN = {Fallback.WAIT: "its pods wait", Fallback.NEXT_RULE: "next rule", Fallback.ANY_WORKER: "any worker"}


@dataclass(frozen=True, slots=True)
class RuleResult:
    """Which field of a rule does not match, or why the rule has no worker of its own; "" if it decides."""

    rule: str
    matches: bool
    why: str


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """Why a worker cannot have the pod; "" if it can."""

    load: WorkerLoad
    why: str


@dataclass(frozen=True, slots=True)
class DryRun:
    """The result. Without a worker the pod waits, for the reason given."""

    rule: Rule | None
    worker: str
    reason: str
    rules: tuple[RuleResult, ...]
    workers: tuple[WorkerResult, ...]


def dry_run_pod(
    policy: Policy,
    sub_queue: SubQueue,
    facts: Facts,
    workers: Sequence[Worker],
    *,
    balancers: Sequence[Balancer],
    chance: Chance,
    worker_limit: int = 0,
) -> DryRun:
    """Route a pod with these facts, which the policy puts into this sub-queue. `balancers` has one item per
    rule and stays unchanged. `worker_limit`: so many of a rule's workers get work; 0: all."""
    found = target(policy, sub_queue, [worker.labels for worker in workers])
    rules = tuple(_rule_results(policy, sub_queue, facts, found, workers))
    if found.rule is None:
        results = tuple(WorkerResult(load_of(worker, ""), "no rule sends it the pod") for worker in workers)
        return DryRun(None, "", found.problem, rules, results)
    rule = policy.rules[found.rule]
    chosen_few = workers_taking_work((workers[i] for i in found.workers), worker_limit)
    stands_by = f"stands by: {worker_limit} workers of a rule get work at once, see `hoss get conflicts`"
    results = tuple(
        WorkerResult(
            load_of(worker, rule.balance.weight_label),
            _closed(worker) or ("" if worker in chosen_few else stands_by)
            if i in found.workers
            else f"does not match {rule.workers}",
        )
        for i, worker in enumerate(workers)
    )
    eligible = [each.load for each in results if not each.why]
    if not eligible:
        return DryRun(rule, "", found.problem or "no worker that fits takes pods now", rules, results)
    if len(eligible) == 1:
        return DryRun(rule, eligible[0].name, "the only one that fits and takes pods now", rules, results)
    chosen = copy.deepcopy(balancers[found.rule]).choose(eligible, sub_queue.bucket, chance)
    algorithm = rule.balance.algorithm
    return DryRun(rule, eligible[chosen].name, f"{algorithm.value}: {_WHY[algorithm]}", rules, results)


def _rule_results(
    policy: Policy, sub_queue: SubQueue, facts: Facts, found: Target, workers: Sequence[Worker]
) -> list[RuleResult]:
    results = []
    for number, rule in enumerate(policy.rules):
        if number not in sub_queue.chain:
            results.append(RuleResult(rule.name, matches=False, why=rule.match.mismatch(facts)))
            continue
        served = any(rule.workers.matches(worker.labels) for worker in workers)
        why = "" if served else f"no registered worker matches {rule.workers}: {_THEN[rule.fallback]}"
        results.append(RuleResult(rule.name, matches=True, why=why))
        if number == found.rule:
            break
    return results


def _closed(worker: Worker) -> str:
    if worker.state is not WorkerState.READY:
        return f"is {worker.state.value}"
    if worker.trust.distrusted or (worker.trust.on_probation and worker.outstanding):
        return "has not answered for its pods in time, and is distrusted for a while"
    if not worker.takes_work:
        return "is filling its cache"
    return "" if worker.credit else "has as many pods as it takes at once"
