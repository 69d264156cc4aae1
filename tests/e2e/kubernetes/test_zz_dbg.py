import sys

sys.path.insert(0, "/tmp")
from e2e.kubernetes.agreement import run_hoss
from e2e.kubernetes.test_volumes import *


def test_dbg(api, storage, cluster):
    api.create_node("n1")
    storage.limit("n1", 1)
    for name in ("a", "b"):
        storage.create_volume(f"pv-{name}")
        storage.create_claim(name)
        storage.bind(name, f"pv-{name}")
    api.create_pod("first", volumes=mounting("a"), nodeName="n1")
    api.create_pod("second", scheduler="hoss", volumes=mounting("b"))
    await_reason(api, "second", "1 node(s) exceed max volume count")
    print(api.request("DELETE", "/api/v1/namespaces/default/pods/first?gracePeriodSeconds=0"))
    import time

    time.sleep(5)
    print(
        [
            (p["metadata"]["name"], p["spec"].get("nodeName"), p["metadata"].get("deletionTimestamp"))
            for p in api("GET", "/api/v1/pods")["items"]
        ]
    )
    print(run_hoss(cluster, "get", "pods"))
    print(run_hoss(cluster, "describe", "pod", "second"))
    print(events_of(api, "second"))
    for n in cluster._services:
        print(n, cluster.log(n)[-1500:])
    assert 0
