"""Spans as they leave the process: to a file, to a collector, or not at all."""

import json
import re

import pytest
import structlog
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanContext
from otlp_receiver import attributes, receiving

from hoss.errors import ConfigError
from hoss.telemetry.collector import ENDPOINT, PROTOCOL
from hoss.telemetry.context import new_trace
from hoss.telemetry.options import tracing
from hoss.telemetry.otlp import CollectorSpans
from hoss.telemetry.tracing import FileExporter


@pytest.fixture(autouse=True)
def no_collector(monkeypatch):
    for name in (ENDPOINT, PROTOCOL):
        monkeypatch.delenv(name, raising=False)


def span():
    return ReadableSpan(
        "s", SpanContext(1, 2, is_remote=False), resource=Resource({}), start_time=1, end_time=2
    )


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
            events=[Event("seen", {"hoss.x": 1}, 20)],
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


def test_spans_are_posted_to_the_collector_that_the_environment_names(monkeypatch):
    with receiving() as receiver:
        monkeypatch.setenv(ENDPOINT, receiver.endpoint + "/")
        with tracing("tests", None) as tracer:
            event = Event("decision", {"hoss.uid": "ab", "hoss.alternates": [1, 2]}, 5)
            links = [new_trace(kept=True)]
            tracer.span(
                "s", new_trace(kept=True), parent=7, began_ns=1, events=[event], links=links, error="e"
            )
    (posted,) = receiver.posted
    assert (posted.path, posted.headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
    (sent,) = spans_of(json.dumps(posted.request))
    assert (sent["name"], sent["status"]) == ("s", {"code": 2, "message": "e"})
    assert len(sent["links"]) == 1
    (event,) = sent["events"]
    assert attributes(event) == {
        "hoss.uid": "ab",
        "hoss.alternates": {"values": [{"intValue": "1"}, {"intValue": "2"}]},
    }


def test_a_failed_export_is_logged_once_and_ends_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")  # seconds: too short for a second try
    exporter = CollectorSpans("http://127.0.0.1:9")  # the discard port: nobody listens
    with structlog.testing.capture_logs() as logged:
        for _ in range(2):
            assert exporter.export([span()]) is SpanExportResult.FAILURE
        file = FileExporter(tmp_path / "gone" / "t.jsonl")
        for _ in range(2):
            assert file.export([span()]) is SpanExportResult.FAILURE
    assert [entry["event"] for entry in logged] == ["traces_not_sent", "traces_not_written"]


def test_without_a_file_and_a_collector_there_is_no_tracer():
    with tracing("tests", None) as tracer:
        assert tracer is None


def test_a_file_that_cannot_be_written_is_an_error_at_the_start(tmp_path):
    path = tmp_path / "no-such-directory" / "t.jsonl"
    error = f"trace_file: {path} cannot be written: No such file"
    with pytest.raises(ConfigError, match=re.escape(error)), tracing("tests", path):
        pass


@pytest.mark.parametrize(
    ("endpoint", "protocol"), [("localhost:4317", ""), ("http://localhost:4317", "grpc")]
)
def test_a_collector_that_expects_grpc_is_an_error_at_the_start(monkeypatch, endpoint, protocol):
    monkeypatch.setenv(ENDPOINT, endpoint)
    if protocol:
        monkeypatch.setenv(PROTOCOL, protocol)
    with pytest.raises(ConfigError, match="HOSS speaks OTLP over HTTP alone"), tracing("tests", None):
        pass


def test_a_share_of_traces_is_chosen(tmp_path):
    with (
        tracing("tests", tmp_path / "t", ratio=1.0) as every,
        tracing("tests", tmp_path / "u", ratio=0.0) as none,
    ):
        assert every.chosen()
        assert not none.chosen()
