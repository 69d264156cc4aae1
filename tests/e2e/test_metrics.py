"""What Prometheus would read from a platform that runs: every declared name, and figures that agree with what
happened."""

import re
import socket
import urllib.request
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.test_platform import DEPLOYMENT
from fork_server import FORK_SERVER
from otlp_receiver import receiving
from waiting import DEADLINE_SECONDS, wait_until

from dispatcher.metrics import ACTIVE, FAILED_TERMS
from dispatcher.metrics import METRICS as OF_DISPATCHERS
from hoss.limits.callers import METRICS as OF_SERVERS
from hoss.security.options import METRICS as OF_DOORS
from hoss.telemetry.metrics import PROCESS_METRICS
from resolver.metrics import METRICS as OF_RESOLVERS
from scheduler_worker.metrics import METRICS as OF_WORKERS

DECLARED = {
    "dispatcher": (*OF_DOORS, *OF_SERVERS, *OF_DISPATCHERS),
    "resolver-1": (*OF_DOORS, *OF_SERVERS, *OF_RESOLVERS),
    "worker-w1": (*OF_DOORS, *OF_WORKERS),
    "worker-w2": (*OF_DOORS, *OF_WORKERS),
    "dashboard": OF_DOORS,
}


def read(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=DEADLINE_SECONDS) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return answer.read().decode()


def value(text: str, series: str) -> float:
    return next(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{series} "))


def names(text: str) -> list[str]:
    return re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)


def test_every_service_shows_what_it_declares_and_status_says_where(hoss):
    hoss("up", "--nodes", "50")
    addresses = {p["name"]: p["metrics"] for p in hoss.json("status")["local"]["processes"] if p["metrics"]}
    assert set(addresses) == set(DECLARED)
    assert f"http://{addresses['dispatcher']}/metrics" in hoss("status").stdout
    hoss("submit", "-f", "-", stdin=DEPLOYMENT)
    wait_until(
        lambda: value(read(addresses["dispatcher"]), 'hoss_pods{phase="bound"}') == 20, "20 bound pods"
    )
    shown = {name: read(address) for name, address in addresses.items()}
    for name, text in shown.items():
        declared = [metric.name for metric in (*PROCESS_METRICS, *DECLARED[name])]
        assert sorted(names(text)) == sorted(declared), name
    dispatcher, resolver = shown["dispatcher"], shown["resolver-1"]
    assert value(dispatcher, 'scheduler_schedule_attempts_total{result="scheduled"}') == 20
    assert value(dispatcher, 'scheduler_pending_pods{queue="active"}') == 0
    assert value(dispatcher, "scheduler_pod_scheduling_sli_duration_seconds_count") == 20
    assert value(dispatcher, 'hoss_phase_duration_seconds_count{phase="committing"}') == 20
    assert value(dispatcher, 'hoss_workers{state="Ready"}') == 2
    assert value(resolver, 'hoss_verdicts_total{verdict="COMMITTED"}') == 20
    assert value(resolver, 'hoss_ledger_commit_duration_seconds_count{shard="0"}') >= 1
    assert value(dispatcher, 'scheduler_queue_incoming_pods_total{event="PodAdd",queue="active"}') == 20
    assert value(dispatcher, "scheduler_preemption_victims_count") == 0
    took = 'scheduler_scheduling_attempt_duration_seconds_count{profile="spread",result="scheduled"}'
    assert sum(value(shown[f"worker-{w}"], took) for w in ("w1", "w2")) == 20
    proposed = [
        value(shown[f"worker-{w}"], f'hoss_worker_proposed_pods_total{{worker="{w}"}}') for w in ("w1", "w2")
    ]
    assert sum(proposed) == 20


def test_every_service_pushes_all_of_it_to_a_collector(hoss, monkeypatch):
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "200")
        hoss("up", "--nodes", "50")
        hoss("submit", "-f", "-", stdin=DEPLOYMENT)
        results = {"attributes": [{"key": "result", "value": {"stringValue": "scheduled"}}], "asDouble": 20.0}

        def all_pushed() -> bool:
            attempts = (
                receiver.metrics().get("hoss-dispatcher", {}).get("scheduler_schedule_attempts_total", {})
            )
            points = attempts.get("sum", {}).get("dataPoints", [])
            return any(results.items() <= point.items() for point in points)

        wait_until(all_pushed, "20 scheduled pods")
        hoss("down")
    pushed = receiver.metrics()
    kinds = {"dispatcher": OF_DISPATCHERS, "resolver": OF_RESOLVERS, "worker": OF_WORKERS}
    for name, metrics in kinds.items():
        known = {metric.name for metric in (*PROCESS_METRICS, *OF_DOORS, *OF_SERVERS, *metrics)}
        assert set(pushed[f"hoss-{name}"]) <= known, name
        assert len(pushed[f"hoss-{name}"]) > len(PROCESS_METRICS), name


def test_a_standby_shows_that_it_stands_by(tmp_path: Path):
    with Cluster(tmp_path, dispatchers=2, dispatcher_flags=("--metrics-listen", "127.0.0.1:0")) as cluster:
        text = read(cluster.metrics("dispatcher-2"))
    assert value(text, ACTIVE.name) == 0
    declared = {*PROCESS_METRICS, *OF_SERVERS, ACTIVE, FAILED_TERMS}
    assert sorted(names(text)) == sorted(metric.name for metric in declared)


@pytest.mark.parametrize("module", ["dispatcher", "resolver", "scheduler_worker"])
def test_a_metrics_address_that_cannot_be_had_is_one_sentence(redis_server, module: str):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = ["--listen", "127.0.0.1:0", "--metrics-listen", address]
        flags += [] if module == "scheduler_worker" else ["--redis-url", redis_server.url]
        flags += [] if module == "resolver" else ["--resolver", "127.0.0.1:1"]
        done = FORK_SERVER.run(module, flags, timeout=DEADLINE_SECONDS)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"{module}: metrics_listen: cannot listen on {address}")
