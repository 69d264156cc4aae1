"""The rules about other pods, vectorised, say what the same rules say written down pair by pair."""

from math import floor, log

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from property.builders_pods import HOSTNAME, NAMESPACES, ZONE, bound, clusters, pod_specs
from property.profiles import examples

from hoss.model.cluster import Cluster
from hoss.model.node import NO_EXECUTE, NO_SCHEDULE
from hoss.model.pod import PodAffinity, SpreadConstraint, group_of
from scheduler_worker.core.framework.extension_points import Code
from scheduler_worker.core.framework.static_fit import StaticFit
from scheduler_worker.core.offline.cluster_snapshot import ClusterSnapshot
from scheduler_worker.core.offline.scheduler import examine, explain_placement
from scheduler_worker.core.placement.ranking import PodRanking, Ranking
from scheduler_worker.core.placement.run_placer import RunPlacer
from scheduler_worker.core.placement.ties import TieOrder
from scheduler_worker.core.plugins import default_profile

PROFILE = default_profile()
UNRESOLVABLE = ("node(s) didn't match pod affinity rules", "(missing required label)")


def labels(thing):
    return dict(thing.labels)


def looks_at(term, namespace):
    """A pending pod's term: namespace selectors find known namespaces, `{}` all."""
    selector = term.namespace_selector
    if namespace in term.namespaces:
        return True
    return selector is not None and (
        selector.everything or (namespace in NAMESPACES and selector.matches(NAMESPACES[namespace]))
    )


def matches(term, pod):
    return term.selector is not None and looks_at(term, pod.namespace) and term.selector.matches(labels(pod))


def falls_under(pod, term):
    """A bound pod's term about the pending pod: an unknown namespace has no labels."""
    if term.selector is None or not term.selector.matches(labels(pod)):
        return False
    return term.sees(pod.namespace, NAMESPACES.get(pod.namespace, {}))


class Naive:
    """Node by node, pod by pod."""

    def __init__(self, cluster, spec):
        self.cluster, self.spec = cluster, spec
        self.rules = spec.pod_affinity or PodAffinity()
        self.node_of = {node.name: node for node in cluster.nodes}

    def domain(self, key, node):
        """Pods on nodes with the same value of the key."""
        value = labels(node).get(key)
        return [
            p
            for p in self.cluster.pods
            if value is not None and labels(self.node_of[p.node]).get(key) == value
        ]

    def selected(self, node):
        required = self.spec.required_node_affinity
        return required is None or required.matches(labels(node), node.name)

    def tolerated(self, node):
        hard = [t for t in node.taints if t.effect in (NO_SCHEDULE, NO_EXECUTE)]
        return all(any(x.tolerates(t) for x in self.spec.tolerations) for t in hard)

    def refusal(self, node):
        """(plugin, reason) of the first rule that refuses the node."""
        if not self.tolerated(node):
            return "TaintToleration", "node(s) had untolerated taint(s)"
        if not self.selected(node):
            return "NodeAffinity", "node(s) didn't match Pod's node affinity/selector"
        held = [port for p in self.cluster.pods if p.node == node.name for port in p.spec.host_ports]
        if any(clash(one, other) for one in self.spec.host_ports for other in held):
            return "NodePorts", "node(s) didn't have free ports for the requested pod ports"
        return self.spread_refusal(node) or self.affinity_refusal(node)

    def spread_refusal(self, node):
        hard = [c for c in self.spec.spread if c.required]
        counts = [self.domain_counts(c, [x.topology_key for x in hard]) for c in hard]
        text = "node(s) didn't match pod topology spread constraints"
        for c, found in zip(hard, counts, strict=True):
            value = labels(node).get(c.topology_key)
            if value is None:
                return "PodTopologySpread", f"{text} (missing required label)"
            least = min(found.values()) if len(found) >= c.min_domains else 0
            itself = c.selector is not None and c.selector.matches(labels(self.spec))
            if found.get(value, 0) + itself - least > c.max_skew:
                return "PodTopologySpread", text
        return None

    def domain_counts(self, c, keys):
        found = {}
        for node in self.cluster.nodes:
            has_keys = all(key in labels(node) for key in keys)
            if has_keys and (self.selected(node) or not c.honor_node_affinity):
                if c.honor_taints and not self.tolerated(node):
                    continue
                value = labels(node).get(c.topology_key, "")
                found[value] = found.get(value, 0) + self.peers(c, node)
        return found

    def peers(self, c, node):
        if c.selector is None or c.selector.everything:
            return 0
        return sum(
            p.node == node.name
            and not p.deleting
            and p.spec.namespace == self.spec.namespace
            and c.selector.matches(labels(p.spec))
            for p in self.cluster.pods
        )

    def affinity_refusal(self, node):
        company = [p for p in self.cluster.pods if all(matches(t, p.spec) for t in self.rules.required)]
        anywhere = any(
            p in company
            for t in self.rules.required
            for n in self.cluster.nodes
            for p in self.domain(t.topology_key, n)
        )
        has_keys = all(t.topology_key in labels(node) for t in self.rules.required)
        near = all(any(p in company for p in self.domain(t.topology_key, node)) for t in self.rules.required)
        first = not anywhere and all(matches(t, self.spec) for t in self.rules.required)
        if not (has_keys and (near or first)):
            return "InterPodAffinity", "node(s) didn't match pod affinity rules"
        if any(
            matches(t, p.spec) for t in self.rules.anti_required for p in self.domain(t.topology_key, node)
        ):
            return "InterPodAffinity", "node(s) didn't match pod anti-affinity rules"
        for p in self.cluster.pods:
            for t in (p.spec.pod_affinity or PodAffinity()).anti_required:
                if falls_under(self.spec, t) and p in self.domain(t.topology_key, node):
                    return "InterPodAffinity", "node(s) didn't satisfy existing pods anti-affinity rules"
        return None

    def attraction(self, feasible):
        raw = {node.name: self.points(node) for node in feasible}
        lowest, highest = min(raw.values()), max(raw.values())
        if lowest == highest:
            return dict.fromkeys(raw, 0)
        return {name: int(100 * ((x - lowest) / (highest - lowest))) for name, x in raw.items()}

    def points(self, node):
        points = 0
        for weighted, sign in ((self.rules.preferred, 1), (self.rules.anti_preferred, -1)):
            for w in weighted:
                points += (
                    sign
                    * w.weight
                    * sum(matches(w.term, p.spec) for p in self.domain(w.term.topology_key, node))
                )
        for p in self.cluster.pods:
            rules = p.spec.pod_affinity or PodAffinity()
            weights = [(t, 1) for t in rules.required] + [(w.term, w.weight) for w in rules.preferred]
            weights += [(w.term, -w.weight) for w in rules.anti_preferred]
            for term, weight in weights:
                if falls_under(self.spec, term) and p in self.domain(term.topology_key, node):
                    points += weight
        return points

    def evenness(self, feasible):
        soft = [c for c in self.spec.spread if not c.required]
        by_default = not self.spec.spread and self.spec.default_spread is not None
        if by_default:
            soft = [
                SpreadConstraint(3, HOSTNAME, self.spec.default_spread, required=False),
                SpreadConstraint(5, ZONE, self.spec.default_spread, required=False),
            ]
        if not soft:
            return dict.fromkeys((n.name for n in feasible), 0)
        keys = [] if by_default else [c.topology_key for c in soft]
        considered = [n for n in feasible if all(key in labels(n) for key in keys)]
        raw = {n.name: self.spread_points(n, soft, keys, considered) for n in considered}
        highest, lowest = max(raw.values(), default=0), min(raw.values(), default=0)
        scores = {n: 100 * (highest + lowest - x) // highest if highest else 100 for n, x in raw.items()}
        return {n.name: scores.get(n.name, 0) for n in feasible}

    def spread_points(self, node, soft, keys, considered):
        points = 0.0
        for c in soft:
            value = labels(node).get(c.topology_key)
            if value is None:
                continue
            if c.topology_key == HOSTNAME:
                count, domains = self.peers(c, node), len(considered)
            else:
                count = self.domain_counts(c, keys).get(value, 0)
                domains = len({labels(n).get(c.topology_key, "") for n in considered})
            points += count * log(domains + 2) + (c.max_skew - 1)
        return floor(points + 0.5)

    def locality(self, node):
        total = 0
        for image in self.spec.images:
            holders = [n for n in self.cluster.nodes if image in dict(n.images)]
            if node in holders:
                total += int(dict(node.images)[image] * (len(holders) / len(self.cluster.nodes)))
        least, most = 23 << 20, (1000 << 20) * self.spec.image_containers
        return 100 * (min(max(total, least), most) - least) // (most - least)


def clash(one, other):
    addresses = {one.host_ip, other.host_ip}
    return (one.port, one.protocol) == (other.port, other.protocol) and (
        len(addresses) == 1 or "0.0.0.0" in addresses
    )


@examples(400)
@given(clusters(), pod_specs())
def test_filters_and_scores_are_those_of_the_rules_written_down_pair_by_pair(cluster, spec):
    ground, naive = ClusterSnapshot(cluster), Naive(cluster, spec)
    got = explain_placement(examine(spec, ground, PROFILE), ground, PROFILE)
    expected = {node.name: naive.refusal(node) for node in cluster.nodes}
    assert {n: (r.plugin, *r.reasons) for n, r in got.refusals.items()} == {
        n: r for n, r in expected.items() if r
    }
    for refusal in got.refusals.values():
        static = refusal.plugin in ("TaintToleration", "NodeAffinity")
        hopeless = static or any(refusal.reasons[0].endswith(text) for text in UNRESOLVABLE)
        assert (refusal.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE) == hopeless
    feasible = [node for node in cluster.nodes if expected[node.name] is None]
    if feasible:
        attraction, evenness = naive.attraction(feasible), naive.evenness(feasible)
        for node in feasible:
            scores = got.scores[node.name]
            assert scores.get("InterPodAffinity", 0) == 2 * attraction[node.name]
            assert scores.get("PodTopologySpread", 0) == 2 * evenness[node.name]
            assert scores.get("ImageLocality", 0) == naive.locality(node)


@examples(150)
@given(
    clusters(),
    st.lists(pod_specs(), min_size=1, max_size=2),
    st.lists(st.integers(0, 1), min_size=1, max_size=6),
)
def test_a_worker_puts_each_pod_of_a_run_where_the_judge_would(cluster, specs, runs):
    ground = ClusterSnapshot(cluster)
    ties = TieOrder(np.random.default_rng(7))
    placer, rankings, pods = RunPlacer(ground.cache, ties), {}, list(cluster.pods)
    for choice in runs:
        spec = specs[choice % len(specs)]
        pod_class = ground.demands.compile(spec)
        demand = pod_class.demand
        if demand not in rankings:
            kind = PodRanking if demand.about_pods else Ranking
            rankings[demand] = kind(
                demand, StaticFit(demand.spec, PROFILE, ground.cache), PROFILE, ground.cache, ties
            )
        chosen = placer.place(rankings[demand], 3, group_of(spec)).nodes.tolist()
        for node in [*chosen, *[None] * (len(chosen) < 3)]:
            now = ClusterSnapshot(Cluster(cluster.nodes, pods, cluster.namespaces))
            verdict = explain_placement(examine(spec, now, PROFILE), now, PROFILE)
            if node is None:
                assert not verdict.feasible
                break
            name = cluster.nodes[node].name
            assert verdict.totals[name] == max(verdict.totals.values())
            pods.append(bound(spec, name))
