"""A dispatcher and a resolver as the command line's clients show them, without either: answers from lists,
and what was sent.

What commands rely on beyond the lists (who is found by what, and what is refused) is held to
tests/contract/test_clients.py, like the real clients of real services.
"""

from dataclasses import dataclass, field
from typing import Any

from hoss.errors import InvalidInput, NotFound
from hoss.manifests.fields import parse_label_selector
from hoss.model.cluster import StorageUpdate, key_of
from hoss.v1 import dispatcher_pb2, resolver_pb2


@dataclass
class DispatcherInMemory:
    """Answers from lists; `submitted` holds every accepted message."""

    pods: list[dispatcher_pb2.PodInfo] = field(default_factory=list)
    jobs: list[dispatcher_pb2.JobInfo] = field(default_factory=list)
    workers: list[dispatcher_pb2.WorkerInfo] = field(default_factory=list)
    tenants: list[dispatcher_pb2.TenantInfo] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    policy: Any = field(
        default_factory=lambda: dispatcher_pb2.Policy(
            yaml="rules: []\n", version=3, name="nightly", source="command"
        )
    )
    refusals: Any = field(default_factory=dispatcher_pb2.Conflicts)
    submitted: list[dispatcher_pb2.SubmitRequest] = field(default_factory=list)
    objects: dict[Any, Any] = field(default_factory=dict)  # cluster objects by key
    fails_with: Exception | None = None

    async def close(self) -> None: ...

    async def apply_objects(self, objects):
        results = [
            "unchanged" if self.objects.get(key_of(item)) == item
            else "configured" if key_of(item) in self.objects
            else "created"
            for item in objects
        ]  # fmt: skip
        self.objects.update((key_of(item), item) for item in objects)
        return results

    async def delete_objects(self, keys):
        return [key for key in keys if self.objects.pop(key, None) is None]

    async def list_objects(self, kind="", namespace=""):
        in_place = {"", namespace} if namespace else {key.namespace for key in self.objects}
        return [
            o for k, o in sorted(self.objects.items()) if kind in ("", k.kind) and k.namespace in in_place
        ]

    async def list_storage(self):
        return StorageUpdate(complete=True)

    async def list_budgets(self, namespace=""):
        status = dispatcher_pb2.BudgetStatus(
            expected_pods=4, current_healthy=3, desired_healthy=2, disruptions_allowed=1
        )
        return [(o, status) for o in await self.list_objects("PodDisruptionBudget", namespace)]

    async def submit(self, request):
        self._maybe_fail()
        self.submitted.append(request)
        return dispatcher_pb2.SubmitReply(request_id=request.request_id)

    async def get_pod(self, namespace="", name="", *, uid=b"", queue=False, decisions=False, steps=False):
        for pod in self.pods:
            if (pod.namespace, pod.name) == (namespace, name) or (uid and pod.uid == uid):
                return pod
        raise NotFound(f"there is no pod {name!r} in namespace {namespace!r}")

    async def list_pods(
        self,
        namespace="",
        *,
        job="",
        phases=(),
        node="",
        label_selector="",
        templates=False,
        page_pods=1000,
        unplaceable=False,
    ):
        self._maybe_fail()
        wanted_labels = parse_label_selector(label_selector, where="label_selector")
        for pod in self.pods:
            wanted = namespace in ("", pod.namespace) and (not phases or pod.phase in phases)
            labels = {label.key: label.value for label in pod.template.spec.labels}
            wanted = wanted and all(requirement.matches(labels) for requirement in wanted_labels)
            if wanted and job in ("", pod.job) and node in ("", pod.node):
                if templates:  # as of a pod that asks for nothing
                    pod.template.SetInParent()
                yield pod

    async def list_jobs(self, namespace="", name="", *, steps=False):
        return [job for job in self.jobs if namespace in ("", job.namespace) and name in ("", job.name)]

    async def list_tenants(self):
        return self.tenants

    async def list_workers(self, *, steps=False):
        return self.workers

    async def delete(self, namespace="", *, pods=(), jobs=(), uids=b""):
        there = [pod.name for pod in self.pods]
        missing = [f"pod {name}" for name in pods if name not in there]
        return dispatcher_pb2.DeleteReply(deleted_pods=len(pods) - len(missing), not_found=missing)

    async def set_worker_state(self, name, state):
        for worker in self.workers:
            if worker.name == name:
                worker.state = state
                return worker
        raise NotFound(f"no worker {name!r}")

    async def status(self):
        self._maybe_fail()
        return dispatcher_pb2.DispatcherStatus(
            version="1", pods_by_phase={"BOUND": 3}, problems=self.problems, policy=self.policy
        )

    async def conflicts(self):
        return self.refusals

    async def steer(self, overlap="", workers=""):
        if overlap == "none":
            raise InvalidInput("'none' is none of auto, shared, shuffled, soft-partition", where="overlap")
        return dispatcher_pb2.Steering(
            overlap=overlap or "shuffled", workers=int(workers or 0), overlap_fixed=True, reason="by hand"
        )

    async def get_policy(self):
        return self.policy

    async def set_policy(self, yaml, *, if_version=0):
        self.policy = dispatcher_pb2.Policy(yaml=yaml, version=if_version + 1)
        return dispatcher_pb2.SetPolicyReply(version=if_version + 1, warnings=["a rule is odd"])

    async def test_policy(self, templates, yaml=""):
        trials = [
            dispatcher_pb2.PolicyTrial(rule="all", worker="w1", reason=f"asked with {yaml!r}")
            for _ in templates
        ]
        return dispatcher_pb2.TestPolicyReply(trials=trials, version=0 if yaml else 7)

    def _maybe_fail(self):
        if self.fails_with is not None:
            raise self.fails_with


@dataclass
class ResolverInMemory:
    """Answers from lists; `upserted` holds every node that was sent."""

    nodes: list[resolver_pb2.NodeInfo] = field(default_factory=list)
    upserted: list[Any] = field(default_factory=list)
    chunks: list[resolver_pb2.ReservationChunk] = field(default_factory=list)
    events: list[resolver_pb2.NodeEvent] = field(default_factory=list)

    async def close(self) -> None: ...

    async def reservations(self, *, details=False):
        for chunk in self.chunks:
            yield chunk

    async def list_nodes(self, names=(), label_selector=""):
        return [node for node in self.nodes if not names or node.spec.name in names]

    async def upsert_nodes(self, nodes, _ledger_epoch=""):
        self.upserted += nodes
        return resolver_pb2.UpsertNodesReply(indexes=range(len(nodes)))

    async def cordon_node(self, name, unschedulable):
        for node in self.nodes:
            if node.spec.name == name:
                node.spec.unschedulable = unschedulable
                return resolver_pb2.CordonNodeReply(node=node.spec)
        raise NotFound(f"no node {name!r}")

    async def feed_as_of_now(self, subscriber):
        yield resolver_pb2.FeedMessage(
            shards=1, snapshot=True, ledger_epoch="1", schema=["cpu", "memory", "pods"]
        )

    async def status(self, _timeout_seconds=None):
        return resolver_pb2.ResolverStatus(version="1", serving=True, shards=1, events=self.events)
