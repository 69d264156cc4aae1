"""Examples for the help of each command, and for docs/reference/cli.md. A test has the real parser read every one."""

from typing import Any

EXAMPLES: dict[str, tuple[str, ...]] = {
    "demo": ("hoss demo", "hoss demo --redis-url redis://127.0.0.1:6379/0 -o json"),
    "up": (
        "hoss up --nodes 1000 --workers 4",
        "hoss up --worker w1 --worker gpu:accelerator=gpu,strategy=binpack --dispatchers 2",
        "hoss up --kubeconfig ~/.kube/config --guard",
    ),
    "down": ("hoss down", "hoss down --purge"),
    "status": ("hoss status", "hoss status -o json"),
    "top": ("hoss top", "hoss top --once"),
    "submit": ("hoss submit -f examples/web.yaml --wait", "kubectl get deployment web -o yaml | hoss submit -f -"),
    "get": (
        "hoss get pods -A -o wide",
        "hoss get pods --waiting",
        "hoss get nodes -l topology.kubernetes.io/zone=zone-a --sort-by .requested.cpu",
        "hoss get reservations --worker w1 --state assumed",
    ),
    "describe": ("hoss describe pod web-0", "hoss describe node node-00001 -o yaml"),
    "trace": ("hoss trace web-0", "hoss trace web-0 -o json"),
    "explain": (
        "hoss explain pod web-0",
        "hoss explain -f pod.yaml",
        "hoss explain -f pod.yaml --nodes nodes.yaml --pods pods.yaml",
    ),
    "delete": ("hoss delete pod web-0 web-1", "hoss delete job web", "hoss delete -f examples/web.yaml"),
    "ungate": ("hoss ungate pod web-0", "hoss ungate job web --gate example.com/quota"),
    "retry": ("hoss retry pod web-0", "hoss retry --failed -A"),
    "cordon": ("hoss cordon node node-00001", "hoss cordon worker w1"),
    "uncordon": ("hoss uncordon node node-00001", "hoss uncordon worker w1"),
    "drain": ("hoss drain worker w1",),
    "nodes add": ("hoss nodes add --count 100", "hoss nodes add -f nodes.yaml"),
    "nodes remove": ("hoss nodes remove node-00001",),
    "policy get": ("hoss policy get",),
    "policy set": ("hoss policy set -f deploy/policy.yaml", "hoss policy set -f deploy/policy.yaml --if-version 3"),
    "policy test": (
        "hoss policy test -f examples/web.yaml",
        "hoss policy test -f examples/web.yaml --policy new.yaml --workers w1:tier=gold",
    ),
    "steer": ("hoss steer --overlap soft-partition", "hoss steer --overlap auto --workers auto"),
    "audit": ("hoss audit", "hoss audit --repair"),
    "ledger dump": ("hoss ledger dump ledger.jsonl",),
    "ledger restore": ("hoss ledger restore ledger.jsonl",),
    "ledger bootstrap": ("hoss ledger bootstrap",),
    "replay": (
        "hoss replay --format openb --nodes openb_node_list_all_node.csv --pods openb_pod_list_default.csv",
        "hoss replay --format azure2020 --nodes 2000 --pods packing_trace_zone_a_v1.sqlite --from 2d --to 3d --speedup 1440",
    ),
    "bench throughput": ("hoss bench throughput --nodes 5000 --pods 100000 --repeat 3",),
    "bench compare": ("hoss bench compare --quick --json now.json",),
    "bench report": ("hoss bench report now.json --html report.html",),
    "bench plan": ("hoss bench plan --pods-per-second 500000 --nodes 2000",),
    "simulate omega": ("hoss simulate omega --quick",),
    "simulate cluster": ("hoss simulate cluster --quick",),
    "simulate check": ("hoss simulate check --measured slow.json",),
    "completion": ("source <(hoss completion bash)",),
}


def add_examples(path: str, command: Any) -> None:
    """Put them at the end of the help of a command, and of those below it."""
    for name, below in getattr(command, "commands", {}).items():
        add_examples(f"{path} {name}", below)
    if lines := EXAMPLES.get(path):
        command.epilog = "\n\n".join(("Examples:", *lines))
