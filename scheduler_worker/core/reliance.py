"""Which pods were placed as they were because of pods placed before, and so must not outlive those in a proposal."""

from hoss.model.pod import PodSpec
from scheduler_worker.core.cache import NodeInfoCache
from scheduler_worker.core.classes import PodClass
from scheduler_worker.core.questions import Matching


def counts_on_others(spec: PodSpec) -> bool:
    """Whether pods that are there let it go somewhere: for spreading those elsewhere, for affinity those near."""
    return bool(spec.pod_affinity and spec.pod_affinity.required) or any(c.required for c in spec.spread)


def bears_rules(spec: PodSpec) -> bool:
    """Whether the ledger has to know a rule of the pod's own: see resolver/core/rules.py."""
    affinity = spec.pod_affinity
    if affinity is None:
        return any(constraint.required for constraint in spec.spread)
    return bool(affinity.anti_required or affinity.required) or any(c.required for c in spec.spread)


def begins_a_kind(pod_class: PodClass, cache: NodeInfoCache) -> bool:
    """Whether it would be placed as the first of pods with affinity to themselves, which may go anywhere."""
    affinity = pod_class.spec.pod_affinity
    terms = affinity.required if affinity else ()
    kind = Matching(terms)
    if not terms or not kind.includes(pod_class.group, cache.census.namespaces):
        return False
    tally = cache.census.tally(kind)
    domains = [tally.by_domain(term.topology_key) for term in terms]
    for sums in domains:
        sums.refresh()
    return not any(sums.sums.any() for sums in domains)
