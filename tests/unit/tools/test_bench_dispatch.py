"""bench dispatch: its loads, and what a rule costs."""

import numpy as np
import pytest

from dispatcher.policy.documents import parse_policy
from hossctl.choices import Submitted
from hossctl.load.runner import pods_of
from tools.bench.dispatch import Setting, load
from tools.bench.policy import policy_yaml, routing_cost


@pytest.mark.parametrize(
    ("mode", "tenants"), [(Submitted.REPLICAS, 1), (Submitted.REPLICAS, 3), (Submitted.DISTINCT, 2)]
)
def test_a_load_has_all_pods_and_tenants(mode, tenants):
    messages = load(Setting(mode, 1201, tenants=tenants))
    assert pods_of(messages) == 1201
    assert len({t.spec.namespace for message in messages for t in message.templates}) == tenants


def test_distinct_pods_come_in_messages_of_500_and_no_two_are_alike():
    messages = load(Setting(Submitted.DISTINCT, 1200))
    assert [len(message.pods.names) for message in messages] == [500, 500, 200]
    specs = [t.spec.SerializeToString(deterministic=True) for message in messages for t in message.templates]
    assert len(np.unique(specs)) == 1200


def test_the_policy_has_as_many_rules_as_asked_and_its_last_takes_everything():
    assert len(parse_policy(policy_yaml(100)).rules) == 100
    assert routing_cost(3).class_micros > 0
