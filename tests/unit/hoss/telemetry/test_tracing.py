"""Spans as they leave the process: to a file, to a collector, and when there is nowhere to go."""

import json
import re

import orjson
import pytest
import structlog
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanContext
from otlp_receiver import receiving

from hoss.errors import ConfigError
from hoss.telemetry.collector import ENDPOINT, PROTOCOL, Collector
from hoss.telemetry.context import new_trace
from hoss.telemetry.options import tracing
from hoss.telemetry.otlp import event_template, int_values
from hoss.telemetry.tracing import FileExporter, Happening, HttpExporter


@pytest.fixture(autouse=True)
def no_collector(monkeypatch):
    for name in (ENDPOINT, PROTOCOL):
        monkeypatch.delenv(name, raising=False)


def span():
    return ReadableSpan("s", SpanContext(1, 2, is_remote=False), resource=Resource({}), start_time=1, end_time=2)


def spans_of(line):
    (of_process,) = json.loads(line)["resourceSpans"]
    return of_process["scopeSpans"][0]["spans"]


def test_a_span_is_written_as_otlp_json_with_events_links_and_error(tmp_path):
    path, context, other = tmp_path / "t.jsonl", new_trace(kept=True), new_trace(kept=True)
    with tracing("tests", path, instance="i1") as tracer:
        tracer.span(
            "work",
            context,
            parent=7,
            began_ns=10,
            ended_ns=30,
            attributes={
                "hoss.pods": 3,
                "hoss.worker": "w",
                "hoss.share": 0.5,
                "hoss.ok": True,
                "hoss.names": ("a", "b"),
            },
            happenings=[Happening("seen", 20, {"hoss.x": 1})],
            links=[other],
            error="went wrong",
        )
    (line,) = path.read_text().splitlines()
    resource = {a["key"]: a["value"] for a in json.loads(line)["resourceSpans"][0]["resource"]["attributes"]}
    assert resource["service.name"] == {"stringValue": "hoss-tests"}
    assert resource["service.instance.id"] == {"stringValue": "i1"}
    (span,) = spans_of(line)
    assert span["traceId"] == f"{context.trace_id:032x}"
    assert span["parentSpanId"] == f"{7:016x}"
    assert (span["startTimeUnixNano"], span["endTimeUnixNano"]) == ("10", "30")
    assert {a["key"]: a["value"] for a in span["attributes"]} == {
        "hoss.pods": {"intValue": "3"},
        "hoss.worker": {"stringValue": "w"},
        "hoss.share": {"doubleValue": 0.5},
        "hoss.ok": {"boolValue": True},
        "hoss.names": {"arrayValue": {"values": [{"stringValue": "a"}, {"stringValue": "b"}]}},
    }
    assert span["events"] == [
        {"timeUnixNano": "20", "name": "seen", "attributes": [{"key": "hoss.x", "value": {"intValue": "1"}}]}
    ]
    assert span["links"] == [{"traceId": f"{other.trace_id:032x}", "spanId": f"{other.span_id:016x}"}]
    assert span["status"] == {"code": 2, "message": "went wrong"}


def test_an_event_from_a_template_is_what_attribute_by_attribute_would_give(tmp_path):
    path, context = tmp_path / "t.jsonl", new_trace(kept=True)
    common = {"hoss.worker": 'w "1" 100%', "hoss.seq": 9}
    own = {"hoss.uid": "stringValue", "hoss.choice": "intValue", "hoss.alternates": "arrayValue"}
    encoded = event_template("decision", 5, common, own) % ("ab", 7, int_values([1, 2]))
    plain = Happening("decision", 5, {"hoss.uid": "ab", "hoss.choice": 7, "hoss.alternates": [1, 2], **common})
    with tracing("tests", path) as tracer:
        tracer.span("s", context, parent=None, began_ns=1, happenings=[plain, encoded.encode()])
    (span,) = spans_of(path.read_text())
    assert span["events"][0] == span["events"][1]
    assert orjson.loads(event_template("empty", 1, {}, {"a": "intValue"}) % 3)["attributes"][0]["value"] == {
        "intValue": "3"
    }


def test_spans_are_posted_to_the_collector_that_the_environment_names(monkeypatch):
    with receiving() as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.endpoint + "/")
        with tracing("tests", None) as tracer:
            tracer.span("s", new_trace(kept=True), parent=None, began_ns=1)
    (posted,) = receiver.posted
    assert (posted.path, posted.headers["content-type"]) == ("/v1/traces", "application/json")
    assert [span["name"] for span in spans_of(json.dumps(posted.request))] == ["s"]


def test_what_nobody_takes_is_said_once_and_ends_nothing(tmp_path):
    exporter = HttpExporter(Collector("traces", "http://127.0.0.1:9"))  # the discard port: nobody listens
    with structlog.testing.capture_logs() as told:
        for _ in range(2):
            assert exporter.export([span()]) is SpanExportResult.FAILURE
        file = FileExporter(tmp_path / "gone" / "t.jsonl")
        for _ in range(2):
            assert file.export([span()]) is SpanExportResult.FAILURE
    assert [entry["event"] for entry in told] == ["traces_not_sent", "traces_not_written"]


def test_without_anywhere_to_go_there_is_no_tracer():
    with tracing("tests", None) as tracer:
        assert tracer is None


def test_a_file_that_cannot_be_written_is_told_at_the_start(tmp_path):
    path = tmp_path / "no-such-directory" / "t.jsonl"
    told = f"trace_file: {path} cannot be written: No such file"
    with pytest.raises(ConfigError, match=re.escape(told)), tracing("tests", path):
        pass


@pytest.mark.parametrize(("endpoint", "protocol"), [("localhost:4317", ""), ("http://localhost:4317", "grpc")])
def test_a_collector_that_is_to_be_spoken_to_in_grpc_is_told_at_the_start(monkeypatch, endpoint, protocol):
    monkeypatch.setenv(ENDPOINT, endpoint)
    if protocol:
        monkeypatch.setenv(PROTOCOL, protocol)
    with pytest.raises(ConfigError, match="HOSS speaks OTLP over HTTP alone"), tracing("tests", None):
        pass


def test_a_share_of_traces_is_chosen(tmp_path):
    with tracing("tests", tmp_path / "t", ratio=1.0) as every, tracing("tests", tmp_path / "u", ratio=0.0) as none:
        assert every.chosen()
        assert not none.chosen()
