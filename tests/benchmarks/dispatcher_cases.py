"""The dispatcher's core: queueing and dispatching pods, and finding the policy's rule for a class."""

import random
from collections.abc import Sequence

import numpy as np
from benchmarks.measuring import Action, Bench, Case

from dispatcher.core.dispatch.routing import Routing
from dispatcher.core.messages import OutcomeCode, SendWork
from dispatcher.core.pods.templates import TemplateKind, TemplateTable
from dispatcher.core.policy.rules import Policy
from dispatcher.core.workers.membership import Membership
from dispatcher.policy.documents import facts_from_bytes, parse_policy
from hoss.model.pod import PodSpec, QosClass
from hoss.v1 import common_pb2
from hoss.wire.convert import pod_spec_from_proto, pod_spec_to_proto
from hossctl.simulate.dispatching import Dispatching, SimulatedWorker
from tools.bench.policy import policy_yaml

PODS = 10_000
CLASSES = 500
_WORKERS = [SimulatedWorker(f"w{number}", {}, 2000) for number in range(2)]


def cases() -> Sequence[Case]:
    return (
        Case("dispatcher: a pod of one job", PODS, lambda _: _jobs(1)),
        Case("dispatcher: a pod of 1,000 jobs", PODS, lambda _: _jobs(1000)),
        Case("dispatcher: a pod, 200,000 others queued", PODS, lambda _: _jobs(1, queued=200_000)),
        Case("dispatcher: a new class, 1 rule", CLASSES, lambda _: _routing(1)),
        Case("dispatcher: a new class, 100 rules", CLASSES, lambda _: _routing(100)),
    )


def _jobs(jobs: int, queued: int = 0) -> Bench:
    """Pods are admitted, sent to two workers and reported bound. `queued` others wait behind them."""

    def fresh() -> Action:
        # "urgent" goes first: what is queued stays queued while it is dispatched.
        specs = {
            "urgent": PodSpec(priority=10, requests=(("cpu", 100),)),
            "other": PodSpec(requests=(("cpu", 100),)),
        }
        dispatching = Dispatching(specs, _WORKERS, Policy(), seed=1)
        sent = dispatching.submit("other", queued, 0.0)[1] if queued else []
        held = sum(len(work.uids) for work in sent)  # what workers took before the urgent ones came

        def action() -> None:
            work = list(sent)
            for _ in range(jobs):
                work += dispatching.submit("urgent", PODS // jobs, 0.0)[1]
            work += dispatching.pump(1.0)
            _answer_all(dispatching, work, PODS + held)

        return action

    return Bench(fresh)


def _answer_all(dispatching: Dispatching, work: list[SendWork], pods: int) -> None:
    """Report batches as bound until so many pods are bound."""
    bound = 0
    while bound < pods:
        batch = work.pop(0)
        positions = np.arange(len(batch.uids), dtype=np.uint32)
        bound += len(positions)
        work += dispatching.answer_columns(
            batch.link, batch.batch, positions, np.uint8(OutcomeCode.BOUND), 1.0
        )
        work += dispatching.pump(1.0)


def _routing(rules: int) -> Bench:
    policy = parse_policy(policy_yaml(rules))
    chance = random.Random(rules)

    def fresh() -> Action:
        templates = TemplateTable(_decode, facts_from_bytes)
        kind = TemplateKind("default", "hoss", "", QosClass.BURSTABLE, "Job")
        numbers = [templates.intern(_spec(chance.randrange(10**9)), kind, 9)[0] for _ in range(CLASSES)]
        routing = Routing(policy, Membership())

        def action() -> None:
            for number in numbers:
                routing.assign(templates, number)

        return action

    return Bench(fresh)


def _spec(number: int) -> bytes:
    spec = PodSpec(
        labels=(("app", f"app-{number}"), ("team", "a")), priority=9, requests=(("cpu", number + 1),)
    )
    return pod_spec_to_proto(spec).SerializeToString(deterministic=True)


def _decode(spec: bytes) -> PodSpec:
    return pod_spec_from_proto(common_pb2.PodSpec.FromString(spec))
