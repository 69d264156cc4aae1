"""The command table of `hoss`: the module and the summary of each command, the panels of its help, and its
examples. Plain data: `hoss --help` and completion import no command."""

# Command -> (module in hossctl.commands, summary).
COMMANDS = {
    "demo": (
        "platform.local",
        "What HOSS is for: a race of two schedulers, a whole cluster, a killed worker, an audit.",
    ),
    "up": (
        "platform.local",
        "Start the local platform: Redis, resolver, dispatcher, workers, simulated nodes.",
    ),
    "down": ("platform.local", "Stop the local platform; its data stays."),
    "status": ("platform.status", "What runs, how it does, and what waits for what."),
    "dashboard": (
        "platform.status",
        "Print links that log in to the local platform's dashboard, or serve one.",
    ),
    "top": ("platform.status", "Workers, queues and throughput, live."),
    "worker": ("platform.worker", "Add, restart, remove and list the workers of the local platform."),
    "apply": ("platform.worker", "Make the pools and the policy of the local platform those of a document."),
    "logs": ("platform.worker", "The logs of the local platform's processes."),
    "submit": (
        "objects.submit",
        "Submit Kubernetes manifests: Pod, Job, Deployment, ReplicaSet, StatefulSet, List.",
    ),
    "wait": ("objects.wait", "Wait until pods, jobs, workers or nodes are in a state."),
    "events": ("objects.wait", "What happened to jobs, pods, workers and nodes."),
    "get": (
        "objects.get",
        (
            "List pods, nodes, workers, jobs, tenants, reservations, conflicts, namespaces, services, "
            "disruption budgets."
        ),
    ),
    "describe": ("objects.get", "One pod, node, worker or job in full."),
    "trace": ("objects.explain", "The spans of one pod, from Submit to its node, from a file of traces."),
    "explain": ("objects.explain", "Why, where and with which scores a pod would be placed, node by node."),
    "fragmentation": ("rebalance", "Which of the free room pods can use, and where the rest is lost."),
    "rebalance": (
        "rebalance",
        "Plan and make moves of pods: room for waiting pods, empty nodes, less fragmented GPUs.",
    ),
    "delete": (
        "objects.delete",
        "Delete pods, jobs, or what a manifest names; what pods held is free again.",
    ),
    "ungate": (
        "objects.delete",
        "Take scheduling gates off pods or jobs; those without any left are scheduled.",
    ),
    "retry": ("objects.delete", "Put failed pods back in the queue."),
    "cordon": ("platform.nodes", "Give a node or worker nothing more; it keeps what it has."),
    "uncordon": ("platform.nodes", "Give a node or worker work again."),
    "drain": ("platform.nodes", "Cordon a worker and take back what it has not started."),
    "nodes": ("platform.nodes", "Add nodes to the pool or remove them."),
    "policy": ("platform.policy", "Show or replace the policy that routes pods to workers."),
    "steer": (
        "platform.policy",
        "Fix by hand how much workers' node preferences overlap and how many work at once.",
    ),
    "audit": (
        "ledger",
        "Check the invariants on a live system; exit 1 with the evidence when one is broken.",
    ),
    "ledger": ("ledger", "Dump the ledger to a file, restore it, or go on with what is left of a lost one."),
    "history": ("history", "Record what happens on a platform, and check whether it kept its promises."),
    "replay": ("replay", "Place a cluster trace and report how it went."),
    "plugin": ("plugin", "Begin a plugin, an algorithm or a scheduler of your own, and check it."),
    "bench": ("bench.throughput", "Measure throughput, or compare schedulers with and without HOSS."),
    "simulate": ("simulate", "Play clusters and hours that no laptop holds, on virtual time."),
    "certs": ("access", "The authority of a platform, and the certificates that it issues."),
    "redis": ("access", "The accounts of HOSS in Redis, with the keys and commands of each."),
    "token": ("access", "Bearer tokens of people and programs."),
    "login": ("access", "Remember a platform with its certificate and token, and use it from now on."),
    "context": ("access", "The platforms that this user's commands know."),
    "completion": ("completion", "Print a shell's completion script."),
}

# How help arranges the commands of COMMANDS: each stands in one of these, in their order there.
PANELS = {
    "Begin here": ("demo", "up", "submit", "get", "explain", "status", "dashboard", "down"),
    "Pods and jobs": ("describe", "events", "wait", "delete", "retry", "ungate", "trace"),
    "Workers, nodes and policy": (
        "top",
        "worker",
        "apply",
        "nodes",
        "cordon",
        "uncordon",
        "drain",
        "policy",
        "steer",
        "fragmentation",
        "rebalance",
        "logs",
    ),
    "What is promised": ("audit", "ledger", "history"),
    "Your own schedulers, measured and compared": ("plugin", "bench", "replay", "simulate"),
    "Access": ("login", "context", "certs", "token", "redis", "completion"),
}

# Command or group of commands -> examples: in its help, and in docs/reference/cli.md. A test parses each.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "demo": ("hoss demo", "hoss demo --redis-url redis://127.0.0.1:6379/0 -o json"),
    "up": (
        "hoss up --nodes 1000 --workers 4",
        "hoss up --worker w1 --worker gpu:accelerator=gpu,strategy=binpack --dispatchers 2",
        "hoss up --config examples/platform.yaml",
        "hoss up --kubeconfig ~/.kube/config --guard",
    ),
    "down": ("hoss down", "hoss down --purge"),
    "status": ("hoss status", "hoss status -o json"),
    "dashboard": ("hoss dashboard", "hoss dashboard --listen 127.0.0.1:7180"),
    "top": ("hoss top", "hoss top --once"),
    "worker add": ("hoss worker add w3 gpu:accelerator=gpu --profile binpack",),
    "worker restart": ("hoss worker restart w1",),
    "worker remove": ("hoss worker remove w3",),
    "worker list": ("hoss worker list -o wide",),
    "worker logs": ("hoss worker logs w1 --tail 50",),
    "apply": (
        "hoss apply -f examples/platform.yaml --dry-run",
        "hoss apply -f examples/platform.yaml",
    ),
    "logs": ("hoss logs dispatcher", "hoss logs --follow"),
    "submit": (
        "hoss submit -f examples/web.yaml --wait",
        "kubectl get deployment web -o yaml | hoss submit -f -",
    ),
    "wait": ("hoss wait --for=bound job/web --timeout 5m", "hoss wait --for=deleted pod/web-0"),
    "events": ("hoss events", "hoss events job/web --watch"),
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
    "fragmentation": (
        "hoss fragmentation",
        "hoss fragmentation --label topology.kubernetes.io/zone -o json",
    ),
    "rebalance plan": (
        "hoss rebalance plan --goal fit-pending",
        "hoss rebalance plan --goal empty-nodes --max-moves 50 --max-pods-per-workload 2",
        "hoss rebalance plan --add-nodes 3 --like node-00001",
        "hoss rebalance plan --drain node-00001 -o json",
        "hoss rebalance plan -f examples/web.yaml",
    ),
    "rebalance controller": ("hoss rebalance controller -f examples/rebalance.yaml --check",),
    "delete": ("hoss delete pod web-0 web-1", "hoss delete job web", "hoss delete -f examples/web.yaml"),
    "ungate": ("hoss ungate pod web-0", "hoss ungate job web --gate example.com/quota"),
    "retry": ("hoss retry pod web-0", "hoss retry --failed -A"),
    "cordon": ("hoss cordon node node-00001", "hoss cordon worker w1"),
    "uncordon": ("hoss uncordon node node-00001", "hoss uncordon worker w1"),
    "drain": ("hoss drain worker w1",),
    "nodes add": ("hoss nodes add --count 100", "hoss nodes add -f nodes.yaml"),
    "nodes remove": ("hoss nodes remove node-00001",),
    "plugin new": ("hoss plugin new plugin green-energy", "hoss plugin new algorithm balanced"),
    "plugin check": (
        "hoss plugin check examples/emptiest_first.py",
        "hoss plugin check green_scheduling:GreenEnergy -f nodes.yaml",
        """hoss plugin check GreenEnergy --args '{"label": "power"}' --timeout 2""",
    ),
    "plugin check-scheduler": (
        (
            "hoss plugin check-scheduler -- python mine.py --name {name} --dispatcher {dispatcher}"
            " --resolver {resolver}"
        ),
        "hoss plugin check-scheduler -- ./mine -name {name} -dispatcher {dispatcher} -resolver {resolver}",
    ),
    "policy get": ("hoss policy get",),
    "policy set": (
        "hoss policy set -f deploy/policy.yaml",
        "hoss policy set -f deploy/policy.yaml --if-version 3",
    ),
    "policy test": (
        "hoss policy test -f examples/web.yaml",
        "hoss policy test -f examples/web.yaml --policy new.yaml --workers w1:tier=gold",
    ),
    "steer": ("hoss steer --overlap soft-partition", "hoss steer --overlap auto --workers auto"),
    "audit": ("hoss audit", "hoss audit --repair"),
    "ledger dump": ("hoss ledger dump ledger.jsonl",),
    "ledger restore": ("hoss ledger restore ledger.jsonl",),
    "ledger bootstrap": ("hoss ledger bootstrap",),
    "history record": (
        "hoss history record --out history.jsonl --seconds 60",
        "hoss history record --out history.jsonl --every 10",
    ),
    "history check": ("hoss history check history.jsonl", "hoss history check history.jsonl -o json"),
    "replay": (
        "hoss replay --format openb --nodes openb_node_list_all_node.csv --pods openb_pod_list_default.csv",
        (
            "hoss replay --format azure2020 --nodes 2000 --pods packing_trace_zone_a_v1.sqlite --from 2d "
            "--to 3d --speedup 1440"
        ),
    ),
    "bench throughput": ("hoss bench throughput --nodes 5000 --pods 100000 --repeat 3",),
    "bench compare": (
        "hoss bench compare --quick --out now",
        (
            "hoss bench compare --schedulers default,fgd,examples/emptiest_first.py:EmptiestFirst"
            " --loads openb --nodes 100"
        ),
    ),
    "bench report": ("hoss bench report now/comparison.json --html report.html",),
    "bench plan": ("hoss bench plan --pods-per-second 500000 --nodes 2000",),
    "simulate omega": ("hoss simulate omega --quick",),
    "simulate cluster": ("hoss simulate cluster --quick",),
    "simulate rebalance": ("hoss simulate rebalance --days 2 --placer emptiest",),
    "simulate check": ("hoss simulate check --measured slow.json",),
    "certs init": ("hoss certs init --authority ./authority",),
    "certs issue": (
        "hoss certs issue worker/w1 --out ./w1",
        "hoss certs issue client/ci --role submit --tenant research",
    ),
    "certs show": ("hoss certs show",),
    "certs renew": ("hoss certs renew",),
    "certs revoke": ("hoss certs revoke client/ci",),
    "certs deployment": (
        "hoss certs deployment ./credentials",
        "hoss certs deployment --secrets hoss-system",
    ),
    "redis accounts": ("hoss redis accounts", "hoss redis accounts --out ./redis"),
    "token create": ("hoss token create --role submit --tenant research --ttl 30d",),
    "token list": ("hoss token list",),
    "token revoke": ("hoss token revoke 0123456789abcdef",),
    "login": ("hoss login lab --dispatcher hoss.example.com:7100 --tls-dir ./me --token-file ./token",),
    "context list": ("hoss context list",),
    "context use": ("hoss context use lab",),
    "completion": ("source <(hoss completion bash)",),
}
