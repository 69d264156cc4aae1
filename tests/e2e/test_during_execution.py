"""requiredDuringSchedulingRequiredDuringExecution as a user meets it: labels of a node change under its
pods."""

from e2e.cluster import Cluster
from e2e.loads import audited
from waiting import until, wait_until

from hoss.client.dispatcher import submission
from hoss.model.node import NodeSpec
from hoss.model.pod import DuringExecution, PodSpec, PodTemplate, Workload
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.endpoints import clients_of
from hossctl.load.nodes import register

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  annotations: {{hoss.dev/required-during-execution: {asked}}}
spec:
  nodeSelector: {{disk: ssd}}
  containers: [{{name: c, image: i, resources: {{requests: {{cpu: 100m}}}}}}]
"""
NODE = """\
apiVersion: v1
kind: Node
metadata: {{name: {name}, labels: {{disk: {disk}}}}}
status: {{allocatable: {{cpu: 4, memory: 8Gi, pods: 110}}}}
"""
MISPLACED = "node a doesn't match the pod's node affinity/selector any more"


def put(hoss, tmp_path, *documents, command=("submit",)):
    path = tmp_path / "manifest.yaml"
    path.write_text("---\n".join(documents))
    return hoss(*command, "-f", str(path), code=None)


def until_shown(hoss, name, **fields):
    wait_until(lambda: fields.items() <= hoss.json("get", "pod", name).items(), f"{name} to be {fields}")


def test_a_pod_whose_node_stops_matching_is_reported_or_evicted_and_placed_anew(hoss, tmp_path):
    hoss("up", "--nodes", "0", "--workers", "1")
    refused = put(hoss, tmp_path, POD.format(name="p", asked="perhaps"))
    assert refused.returncode == 2
    assert "hoss.dev/required-during-execution]: is 'perhaps'; allowed: report, evict" in refused.stderr
    add = ("nodes", "add")
    put(hoss, tmp_path, NODE.format(name="a", disk="ssd"), command=add)
    pods = [POD.format(name=asked, asked=asked) for asked in ("report", "evict")]
    assert put(hoss, tmp_path, *pods, command=("submit", "--wait")).returncode == 0
    put(hoss, tmp_path, NODE.format(name="a", disk="hdd"), NODE.format(name="b", disk="hdd"), command=add)
    until_shown(hoss, "report", phase="Bound", node="a", reason=MISPLACED)
    until_shown(hoss, "evict", phase="Unschedulable")
    assert MISPLACED in hoss("describe", "pod", "report").stdout
    assert any(MISPLACED in problem for problem in hoss.json("status", code=None)["problems"])
    audit = hoss.json("audit")
    assert [MISPLACED in report for report in audit["reports"]] == [True]
    put(hoss, tmp_path, NODE.format(name="b", disk="ssd"), command=add)
    until_shown(hoss, "evict", phase="Bound", node="b", reason="")
    put(hoss, tmp_path, NODE.format(name="a", disk="ssd"), command=add)
    until_shown(hoss, "report", phase="Bound", node="a", reason="")


async def test_labels_that_change_while_the_dispatcher_is_away_are_found_when_it_is_back(tmp_path):
    def node(name, disk):
        amounts = (("cpu", 8000), ("memory", 2**34), ("pods", 110))
        return NodeSpec(name, labels=(("disk", disk),), allocatable=amounts)

    async def until_bound(clients, node, reason):
        async def all_are():
            pods = [pod async for pod in clients.dispatcher.list_pods("default")]
            return pods and all((pod.phase, pod.node, pod.reason) == (pb.BOUND, node, reason) for pod in pods)

        await until(all_are, f"all to be on {node}: {reason!r}")

    with Cluster(tmp_path, workers=["w1"]) as cluster:
        async with clients_of(cluster.endpoints) as clients:
            await register(clients.resolver, [node("a", "ssd")])
            spec = PodSpec(node_selector=(("disk", "ssd"),), requests=(("cpu", 100),))
            template = PodTemplate(spec, during_execution=DuringExecution.EVICT)
            for message in submission([Workload("job", template, replicas=20)]):
                await clients.dispatcher.submit(message)
            await until_bound(clients, "a", "")
            cluster.kill("dispatcher")
            await register(clients.resolver, [node("a", "hdd"), node("b", "ssd")])
            cluster.start_dispatcher()
        async with clients_of(cluster.endpoints) as clients:
            await until_bound(clients, "b", "")
            result = await audited(clients)
            assert (result.findings, result.unchecked, result.bound) == ([], [], 20)
