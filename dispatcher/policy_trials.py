"""TestPolicy: what the policy in force, or another, would do with pods at this moment."""

import random
import zlib
from collections.abc import Sequence

from dispatcher.core.balance import Balancer, make_balancer
from dispatcher.core.membership import Worker
from dispatcher.core.policy import Policy, facts_of
from dispatcher.core.policy_trial import Trial, try_pod
from dispatcher.core.rule_index import RuleIndex
from hoss.model.pod import PodTemplate
from hoss.v1 import dispatcher_pb2 as pb
from hoss.wire.convert import conflict_rule_to_proto, pod_spec_to_proto, scope_to_proto


def trials(
    policy: Policy,
    templates: Sequence[PodTemplate],
    workers: Sequence[Worker],
    balancers: Sequence[Balancer] = (),
    at_once: int = 0,
) -> list[pb.PolicyTrial]:
    """What the policy would do with pods of each template. `balancers`: what its rules have done so far; else nothing yet.
    `at_once`: so many of a rule's workers get work; 0: all."""
    index = RuleIndex(policy)
    by_name = sorted(workers, key=lambda worker: worker.name)
    asked = balancers or [make_balancer(rule.balance) for rule in policy.rules]
    found = []
    for template in templates:
        spec, facts = pod_spec_to_proto(template.spec).SerializeToString(deterministic=True), facts_of(template)
        # By the class, so that the same question gets the same answer.
        chance = random.Random(zlib.crc32(spec))
        lane = index.lane(facts, spec)
        trial = try_pod(policy, lane, facts, by_name, balancers=asked, chance=chance, at_once=at_once)
        found.append(_told(trial))
    return found


def _told(trial: Trial) -> pb.PolicyTrial:
    message = pb.PolicyTrial(
        rule="" if trial.rule is None else trial.rule.name,
        worker=trial.worker,
        reason=trial.reason,
        rules=[pb.RuleTrial(rule=said.rule, matches=said.matches, reason=said.why) for said in trial.rules],
        workers=[
            pb.WorkerTrial(
                worker=said.load.name,
                eligible=not said.why,
                reason=said.why,
                outstanding=said.load.outstanding,
                work_ms=said.load.work_micros / 1000,
            )
            for said in trial.workers
        ],
    )
    if trial.rule is not None:
        message.conflicts.CopyFrom(conflict_rule_to_proto(trial.rule.conflicts))
        if trial.rule.nodes is not None:
            message.scope.CopyFrom(scope_to_proto(trial.rule.nodes))
    return message
