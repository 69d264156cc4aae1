"""Tenants on the command line."""

import json

from hoss.v1 import dispatcher_pb2 as pb


def test_tenants_as_a_table_and_as_json(hoss):
    hoss.dispatcher.tenants = [
        pb.TenantInfo(name="red", weight=3, share=0.25, resource="cpu", queued=2, bound=7)
    ]
    lines = hoss("get", "tenants").stdout.splitlines()
    assert lines[0].split() == [
        "NAME",
        "WEIGHT",
        "SHARE",
        "OF",
        "QUEUED",
        "SCHEDULING",
        "BOUND",
        "UNSCHEDULABLE",
    ]
    assert lines[1].split() == ["red", "3", "25.0%", "cpu", "2", "0", "7", "0"]
    (document,) = json.loads(hoss("get", "tenants", "-o", "json").stdout)["items"]
    assert document["share"] == 0.25
    assert document["resource"] == "cpu"


def test_describe_pod_says_behind_whom_it_waits(hoss, a_pod):
    told = (
        "tenant blue, which holds 1.0% of the cluster's cpu (weight 1); "
        "tenant red holds 9.0% of it (weight 1)"
    )
    hoss.dispatcher.pods = [a_pod("web-0", pb.QUEUED, queue=pb.QueueStanding(name="active", behind=told))]
    assert json.loads(hoss("describe", "pod", "web-0", "-o", "json").stdout)["waitsBehind"] == told
    assert "blue" in hoss("describe", "pod", "web-0").stdout
    assert "blue" in hoss("explain", "pod", "web-0").stdout
