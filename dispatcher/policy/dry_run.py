"""What a policy would do with pods at this moment (TestPolicy), and the cluster that its warnings refer
to."""

import random
import zlib
from collections import Counter
from collections.abc import Sequence

from dispatcher.core.dispatch.balance import Balancer, make_balancer
from dispatcher.core.dispatch.dry_run import DryRun, dry_run_pod
from dispatcher.core.machine import Machine
from dispatcher.core.policy.checks import PolicyContext
from dispatcher.core.policy.index import RuleIndex
from dispatcher.core.policy.rules import Policy, facts_of
from dispatcher.core.workers.membership import Worker
from dispatcher.ledger.nodes import ClusterNodes
from hoss.model.pod import PodTemplate
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.convert import conflict_rule_to_proto, pod_spec_to_proto, scope_to_proto


def policy_context(policy: Policy, machine: Machine, nodes: ClusterNodes) -> PolicyContext:
    """The cluster now. Nodes and resources are left out where the policy names none."""
    about_nodes = any(rule.nodes is not None or rule.match.resources for rule in policy.rules)
    waiting: Counter[str] = Counter()
    for sub_queue in machine.queues.active.sub_queues():
        destination = machine.routing.destination(sub_queue)
        if destination.rule is not None and not destination.workers:
            waiting[destination.rule.name] += machine.queues.active.count(sub_queue)
    return PolicyContext(
        workers=[worker.labels for worker in machine.members.living()],
        nodes=nodes.traits.labels if about_nodes else (),
        resources=nodes.traits.resources if about_nodes else frozenset(),
        priority_classes=frozenset(kind.priority_class_name for kind in machine.registry.templates.kinds),
        waiting=waiting,
    )


def dry_run(
    policy: Policy,
    templates: Sequence[PodTemplate],
    workers: Sequence[Worker],
    balancers: Sequence[Balancer] = (),
    worker_limit: int = 0,
) -> list[pb.PolicyTrial]:
    """What the policy would do with a pod of each template. `balancers`: the state of its rules' balancers;
    new ones if empty. `worker_limit`: how many of a rule's workers get work at once; 0: all."""
    index = RuleIndex(policy)
    by_name = sorted(workers, key=lambda worker: worker.name)
    of_rules = balancers or [make_balancer(rule.balance) for rule in policy.rules]
    replies = []
    for template in templates:
        spec = pod_spec_to_proto(template.spec).SerializeToString(deterministic=True)
        facts = facts_of(template)
        # Seeded by the class, so that the same question gets the same answer.
        chance = random.Random(zlib.crc32(spec))
        sub_queue = index.sub_queue(facts, spec)
        trial = dry_run_pod(
            policy, sub_queue, facts, by_name, balancers=of_rules, chance=chance, worker_limit=worker_limit
        )
        replies.append(_reply(trial))
    return replies


def _reply(trial: DryRun) -> pb.PolicyTrial:
    message = pb.PolicyTrial(
        rule="" if trial.rule is None else trial.rule.name,
        worker=trial.worker,
        reason=trial.reason,
        rules=[pb.RuleTrial(rule=rule.rule, matches=rule.matches, reason=rule.why) for rule in trial.rules],
        workers=[
            pb.WorkerTrial(
                worker=worker.load.name,
                eligible=not worker.why,
                reason=worker.why,
                outstanding=worker.load.outstanding,
                work_ms=worker.load.work_micros / 1000,
            )
            for worker in trial.workers
        ],
    )
    if trial.rule is not None:
        message.conflicts.CopyFrom(conflict_rule_to_proto(trial.rule.conflicts))
        if trial.rule.nodes is not None:
            message.scope.CopyFrom(scope_to_proto(trial.rule.nodes))
    return message
