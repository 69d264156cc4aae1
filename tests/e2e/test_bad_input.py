"""What users get wrong: refused with the place and what would be right, or told on the pod; and the worker
goes on."""

from waiting import wait_until

POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: x}}}}
spec:
  containers: [{{name: c, image: i}}]
  {rule}
"""
NODE_TERM = (
    "affinity: {{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: "
    "{{nodeSelectorTerms: [{{matchExpressions: [{}]}}]}}}}}}"
)
NEAR = (
    "affinity: {{podAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: [{{topologyKey: {}, {}}}]}}}}"
)
SPREAD = (
    "topologySpreadConstraints: [{maxSkew: 1, topologyKey: room, whenUnsatisfiable: DoNotSchedule, "
    "labelSelector: {matchLabels: {app: x}}}]"
)
GANG = """\
apiVersion: batch/v1
kind: Job
metadata: {name: gang, annotations: {hoss.dev/min-available: "5"}}
spec: {parallelism: 3, template: {spec: {containers: [{name: c, image: i}]}}}
"""
REFUSED = {
    NODE_TERM.format(
        "{key: a, operator: Like, values: [b]}"
    ): "operator: is 'Like'; allowed: In, NotIn, Exists",
    NODE_TERM.format("{key: a, operator: In}"): "values: is empty; In takes at least one value",
    NEAR.format(
        "host", "labelSelector: {matchExpressions: [{key: a, operator: Gt, values: ['1']}]}"
    ): "is 'Gt'; allowed",
    NEAR.format("host", "labelSelector: {matchExpressions: [{key: a, operator: In}]}"): "values: is empty",
    "tolerations: [{key: a, operator: Maybe}]": "operator: is 'Maybe'; allowed: Equal, Exists",
}
HELPS = {
    "room": (
        NEAR.format("room", "labelSelector: {matchLabels: {app: y}}"),
        "nodes with the label room: none has it",
    ),
    "spread": (SPREAD, "nodes with the label room: none has it"),
    "nowhere": (
        NEAR.format(
            "kubernetes.io/hostname", "namespaces: [nowhere], labelSelector: {matchLabels: {app: y}}"
        ),
        "a pod with app=y in a kubernetes.io/hostname",
    ),
    "number": (NODE_TERM.format("{key: a, operator: Gt, values: [many]}"), "Gt compares whole numbers"),
}


def test_what_the_api_server_would_refuse_is_refused_and_the_rest_is_told_on_the_pod(hoss, tmp_path):
    hoss("up", "--nodes", "3", "--workers", "1")
    file = tmp_path / "pod.yaml"
    for rule, problem in REFUSED.items():
        file.write_text(POD.format(name="bad", rule=rule))
        told = hoss("submit", "-f", str(file), code=2).stderr
        assert "document 1: spec." in told
        assert problem in told
    file.write_text(GANG)
    assert (
        "[hoss.dev/min-available]: is 5; there are 3 replicas"
        in hoss("submit", "-f", str(file), code=2).stderr
    )
    assert hoss.json("get", "pods")["items"] == []

    file.write_text("---\n".join(POD.format(name=name, rule=rule) for name, (rule, _) in HELPS.items()))
    assert "namespace 'nowhere', which does not exist" in hoss("submit", "-f", str(file)).stderr
    for name, (_, sentence) in HELPS.items():
        told = waiting(hoss, name)
        assert told["reason"].startswith("0/3 nodes are available: ")
        assert told["nodes"]["message"] == told["reason"]
        assert any(sentence in helps for helps in told["wouldHelp"]), told["wouldHelp"]

    file.write_text(POD.format(name="good", rule=""))
    hoss("submit", "-f", str(file), "--wait")


def waiting(hoss, name):
    wait_until(lambda: hoss.json("get", "pod", name)["phase"] == "Unschedulable", f"{name} to be refused")
    return hoss.json("explain", "pod", name)
