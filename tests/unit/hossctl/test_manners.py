"""Manners of the command line: formats, order, quiet, hints, colours and completion."""

import contextlib
import json
import os
import subprocess
import sys

import pytest

from hoss.errors import InvalidInput, TransportError, printable
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.auditing import AuditResult
from hossctl.choices import MODES, SCHEDULERS, Load
from hossctl.cli import report
from hossctl.compare.schedulers import scheduler_names
from hossctl.console import (
    Column,
    Format,
    complain,
    print_document,
    print_lines,
    print_rows,
    print_summary,
    say,
)
from hossctl.jsonpath import read_template
from scheduler_worker.core.placement.algorithms import ALGORITHMS
from scheduler_worker.core.plugins.profiles import PRESETS

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: i}]}\n"


@pytest.fixture
def pods(hoss, a_pod):
    hoss.dispatcher.pods = [
        a_pod("web-1", attempts=3, node="n2"),
        a_pod("web-2", pb.UNSCHEDULABLE, attempts=10),
        a_pod("web-0", attempts=1, node="n1"),
    ]
    return hoss


def test_a_template_is_filled_in_from_what_json_prints(pods):
    assert pods("get", "pods", "-o", "jsonpath={.items[*].name}").stdout == "web-1 web-2 web-0\n"
    assert pods("get", "pod", "web-0", "-o", "jsonpath={.node}").stdout == "n1\n"
    assert pods("describe", "pod", "web-0", "-o", "jsonpath={.phase}").stdout == "Bound\n"


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("jsonpath={.items", "has no other"),
        ("csv", "choose one of table, wide, json, yaml, name, jsonpath=TEMPLATE"),
    ],
)
def test_a_format_that_is_none_is_refused_with_those_there_are(pods, output, problem):
    refused = pods("get", "pods", "-o", output)
    assert refused.exit_code == 2
    assert problem in refused.stderr


@pytest.mark.parametrize(
    ("path", "names"),
    [
        (".attempts", ["web-0", "web-1", "web-2"]),
        ("{.name}", ["web-0", "web-1", "web-2"]),
        ("node", ["web-2", "web-0", "web-1"]),
    ],
)
def test_a_list_is_sorted_by_a_field(pods, path, names):
    assert pods("get", "pods", "--sort-by", path, "-o", "name").stdout.split() == [
        f"pod/{name}" for name in names
    ]


def test_a_field_that_nothing_has_is_refused_with_those_there_are(pods):
    refused = pods("get", "pods", "--sort-by", ".restarts")
    assert refused.exit_code == 2
    assert "'.restarts' is in none of them; there are .namespace, .name" in refused.stderr


@pytest.mark.parametrize("arguments", [("--quiet", "submit", "-f", "-"), ("submit", "-f", "-", "-q")])
def test_quiet_says_nothing_of_what_went_well_wherever_it_stands(hoss, arguments):
    result = hoss(*arguments, stdin=POD)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    assert "submitted" in hoss("submit", "-f", "-", stdin=POD.replace("name: a", "name: b")).stderr


def test_quiet_keeps_results_and_errors(pods):
    assert pods("-q", "get", "pods", "-o", "name").stdout.count("\n") == 3
    assert "error: pod b: not there" in pods("-q", "delete", "pod", "b").stderr
    assert "error: node nope" in pods("cordon", "node", "nope", "-q").stderr


def test_what_is_mistyped_is_guessed(hoss):
    assert "did you mean 'nodes'?" in hoss("get", "noeds").stderr
    hoss.dispatcher.workers = [pb.WorkerInfo(name="rack-17"), pb.WorkerInfo(name="row-18")]
    assert hoss("get", "worker", "rak-17").stderr == (
        "error: worker 'rak-17': is not there; `hoss get workers` lists all; did you mean 'rack-17'?\n"
    )
    assert "did you mean" not in hoss("get", "worker", "something-else").stderr
    assert "--namespace" in hoss("get", "pods", "--namespce", "x").stderr


@pytest.mark.parametrize(
    ("short", "kind"),
    [
        ("po", "pods"),
        ("no", "nodes"),
        ("wo", "workers"),
        ("jo", "jobs"),
        ("res", "reservations"),
        ("ns", "namespaces"),
    ],
)
def test_short_names_stand_for_kinds_and_are_listed_in_the_help(hoss, short, kind):
    assert "is not listed here" not in hoss("get", short).stderr
    assert f"{kind} ({short})" in " ".join(hoss("get", "--help").stdout.replace("│", " ").split())


def test_the_help_tells_the_exit_codes(hoss):
    assert (
        "Exit codes: 0 done; 1 failed, not found, or a broken invariant; 2 wrong usage or bad input; 3"
        in " ".join(hoss("--help").stdout.split())
    )


def test_nothing_is_coloured_that_is_not_a_terminal(pods):
    for arguments in (("get", "pods"), ("status",), ("--help",), ("get", "podz"), ("nonsense",)):
        result = pods(*arguments)
        assert "\x1b" not in result.stdout + result.stderr


def completed(hoss, monkeypatch, *words):
    monkeypatch.setenv("_HOSS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(("hoss", *words)))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    return hoss().stdout.split()


def test_tab_offers_commands_kinds_and_the_names_that_are_there(pods, monkeypatch, a_node):
    pods.resolver.nodes = [a_node("n1", {}, {}), a_node("m1", {}, {})]
    assert completed(pods, monkeypatch, "cor") == ["cordon"]
    assert completed(pods, monkeypatch, "get", "re") == ["reservations"]
    assert completed(pods, monkeypatch, "describe", "w") == ["workers"]
    assert completed(pods, monkeypatch, "get", "pods", "web-") == ["web-1", "web-2", "web-0"]
    assert completed(pods, monkeypatch, "delete", "pod", "web-1", "web-") == ["web-2", "web-0"]
    assert completed(pods, monkeypatch, "cordon", "node", "n") == ["n1"]


def test_tab_offers_objects_contexts_formats_and_states(pods, monkeypatch, a_node):
    pods.resolver.nodes = [a_node("n1", {}, {}), a_node("m1", {}, {})]
    assert completed(pods, monkeypatch, "wait", "") == ["pod/", "job/", "worker/", "node/"]
    assert completed(pods, monkeypatch, "wait", "po") == ["pod/web-1", "pod/web-2", "pod/web-0"]
    assert completed(pods, monkeypatch, "wait", "node/n") == ["node/n1"]
    assert (
        completed(pods, monkeypatch, "wait", "nonsense/n")
        == completed(pods, monkeypatch, "wait", "tenant/")
        == []
    )
    assert completed(pods, monkeypatch, "wait", "pod/web-0", "--for", "d") == ["deleted"]
    assert completed(pods, monkeypatch, "events", "pod/web-2") == ["pod/web-2"]
    assert completed(pods, monkeypatch, "nodes", "remove", "m") == ["m1"]
    assert completed(pods, monkeypatch, "explain", "pod", "web-1") == ["web-1"]
    assert completed(pods, monkeypatch, "trace", "web-1") == ["web-1"]
    assert completed(pods, monkeypatch, "retry", "p") == ["pods"]
    assert completed(pods, monkeypatch, "get", "pods", "-o", "j") == ["json"]
    assert completed(pods, monkeypatch, "context", "use", "") == ["local"]


def test_tab_offers_profiles_and_algorithms(hoss, monkeypatch):
    profiles = list(PRESETS)
    assert completed(hoss, monkeypatch, "explain", "pod", "web-0", "--profile", "") == profiles
    assert completed(hoss, monkeypatch, "worker", "add", "w3", "--profile", "") == profiles
    assert completed(hoss, monkeypatch, "worker", "add", "w3", "--algorithm", "") == list(ALGORITHMS)


def test_tab_offers_what_a_comparison_lacks_in_its_lists(hoss, monkeypatch):
    def offered(*words):
        return completed(hoss, monkeypatch, "bench", "compare", *words)

    assert offered("--schedulers", "") == [*SCHEDULERS]
    assert set(SCHEDULERS) <= set(scheduler_names())
    assert offered("--modes", "") == [mode.value for mode in MODES]
    assert offered("--loads", "") == [load.value for load in Load]
    assert offered("--modes", "single,multi-l") == ["single,multi-locked"]
    assert offered("--loads", "uniform,trace,u") == ["uniform,trace,unique"]
    assert offered("--schedulers", "mine.py:Mine,f") == ["mine.py:Mine,fgd"]


def test_tab_offers_nothing_and_says_nothing_where_no_platform_answers(pods, monkeypatch):
    pods.dispatcher.fails_with = TransportError("nobody answers")
    assert completed(pods, monkeypatch, "get", "pods", "web-") == []
    assert completed(pods, monkeypatch, "get", "nonsense", "x") == []


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_enough_ends_the_command_without_a_word(unbuffered):
    reading, writing = os.pipe()
    os.close(reading)  # gone before anything is written
    command = [sys.executable, "-m", "hossctl", "completion", "bash"]
    done = subprocess.run(
        command,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    os.close(writing)
    assert done.stderr == ""
    assert done.returncode in (0, 1)


@pytest.mark.parametrize(("terminal", "length"), [(True, 40), (False, 103)])
def test_a_tables_lines_end_where_the_terminals_do_and_in_a_pipe_nothing_is_cut(
    monkeypatch, capsys, terminal, length
):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    print_rows([{"name": "a" * 103}], [Column("NAME", lambda row: row["name"])], wide=False)
    heading, line = capsys.readouterr().out.splitlines()
    assert (heading, len(line)) == ("NAME", length)


@pytest.mark.parametrize("words", [(), ("submit",), ("bench",), ("worker", "add")])
def test_help_names_no_type_of_flags(hoss, words):
    shown = hoss(*words, "--help").stdout
    assert "--help" in shown
    assert "bool" not in shown


def test_an_interrupted_run_of_moves_says_that_they_go_on(hoss, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("hossctl.rebalance.running.carry_out", interrupted)
    move = {"pod": "default/a", "from": "n1", "to": "n2"}
    plan = {"kind": "RebalancePlan", "goal": "spread", "seen": {}, "moves": [move]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    result = hoss("rebalance", "run", "--plan", str(tmp_path / "plan.json"))
    assert result.exit_code == 130
    assert "interrupted: the moves that the dispatcher has go on" in result.stderr


@pytest.mark.parametrize(
    "words", [("fragmentation",), ("rebalance", "plan"), ("rebalance", "run"), ("rebalance", "run", "-q")]
)
def test_what_reads_every_pod_says_so_while_it_takes_long_and_can_be_interrupted(hoss, monkeypatch, words):
    told = []

    @contextlib.contextmanager
    def announced(text):
        told.append(text)
        yield

    async def interrupted(_clients):
        raise KeyboardInterrupt

    monkeypatch.setattr("hossctl.commands.rebalance.announced", announced)
    monkeypatch.setattr("hossctl.rebalance.gathering.gather", interrupted)
    result = hoss(*words)
    assert (result.exit_code, result.stdout, told) == (130, "", ["reading the platform"])


def test_an_audit_is_named_once(hoss, monkeypatch):
    async def audit(*_, **__):
        return AuditResult(nodes=2, reservations=3, bound=3, workers=1)

    monkeypatch.setattr("hossctl.auditing.audit", audit)
    result = hoss("audit")
    assert " ".join(result.stdout.split()) == "audit clean (2 nodes, 3 reservations, 3 bound, 1 cache)"


ESCAPES = "n\x1b[2J\x07\x9b31m\u202e\udcff"
SHOWN = "n\\x1b[2J\\x07\\x9b31m\\u202e\\udcff"


@pytest.mark.parametrize("mark", "\u061c\u200e\u200f\u202a\u2069")
def test_a_mark_of_the_direction_of_text_is_written_out(mark):
    assert printable(f"a{mark}b") == f"a\\u{ord(mark):04x}b"


def test_what_strangers_call_themselves_moves_no_terminal(hoss, a_node, a_pod, capsys):
    some = {"cpu": 1}
    hoss.resolver.nodes = [
        a_node("good", some, some),
        a_node(f"{ESCAPES[:-1]}\nnode-00000\tReady", some, some),
    ]
    hoss.dispatcher.pods = [a_pod("p", pb.UNSCHEDULABLE, reason=ESCAPES[:-1])]
    for command in (
        ("get", "nodes"),
        ("get", "nodes", "-o", "wide"),
        ("get", "pods", "-o", "wide"),
    ):
        result = hoss(*command)
        assert SHOWN[:-6] in result.stdout, command
        assert printable(result.output) == result.output, command
    assert len(hoss("get", "nodes").stdout.splitlines()) == 3
    assert "\\nnode-00000\\tReady" in hoss("get", "nodes").stdout
    print_summary(ESCAPES, [(ESCAPES, f"one\n{ESCAPES}")])
    print_lines([ESCAPES])
    say(ESCAPES)
    complain(ESCAPES)
    report(InvalidInput(ESCAPES, where=ESCAPES))
    report(RuntimeError(ESCAPES))
    written = capsys.readouterr()
    assert written.out.count(SHOWN) == 4
    assert written.err.count(SHOWN) == 5
    assert printable(written.out + written.err) == written.out + written.err


def test_programs_get_names_as_they_are_and_terminals_do_not(hoss, a_node, monkeypatch, capsys):
    hoss.resolver.nodes = [a_node("a\x1b[2Jb", {"cpu": 1}, {"cpu": 0})]
    assert hoss("get", "nodes", "-o", "jsonpath={.items[*].name}").stdout == "a\x1b[2Jb\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_document({"name": "\x9b31m"}, Format.JSON)
    print_document({"name": "\x1b[2J"}, Format.JSON, read_template("{.name}"))
    shown = capsys.readouterr().out
    assert printable(shown) == shown
    assert "\\x1b[2J" in shown


def test_a_list_of_addresses_without_one_is_refused(hoss):
    refused = hoss("get", "pods", "--dispatcher", ",,")
    assert (refused.exit_code, refused.stderr) == (
        2,
        "error: --dispatcher: ',,' is no address; give host:port, as in 127.0.0.1:7100\n",
    )


def test_a_manifest_that_names_nothing_to_delete_is_refused(hoss):
    refused = hoss("delete", "-f", "-", stdin="apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n")
    assert (refused.exit_code, refused.stderr) == (2, "error: -: there is nothing to delete in it\n")


@pytest.mark.parametrize(
    ("command", "most"),
    [
        (("submit", "-f"), "33,554,432 bytes"),
        (("delete", "-f"), "33,554,432 bytes"),
        (("explain", "-f"), "33,554,432 bytes"),
        (("explain", "--cases"), "33,554,432 bytes"),
        (("rebalance", "plan", "--goal", "fit-pending", "-f"), "33,554,432 bytes"),
        (("nodes", "add", "-f"), "33,554,432 bytes"),
        (("up", "--nodes-file"), "33,554,432 bytes"),
        (("bench", "compare", "--schedulers"), "1,048,576 bytes"),
        (("policy", "set", "-f"), "1,048,576 bytes"),
    ],
)
def test_of_a_file_that_is_too_large_no_more_is_read_than_shows_that_it_is(hoss, tmp_path, command, most):
    file = tmp_path / "endless.yaml"
    with file.open("wb") as endless:
        endless.truncate(2**42)  # more than this machine can hold; it takes no room on the disk
    refused = hoss(*command, str(file))
    assert refused.exit_code == 2
    assert f"{file}: has more than {most}" in refused.stderr


def test_a_file_without_a_name_is_refused(hoss):
    refused = hoss("submit", "-f", "")
    assert (refused.exit_code, refused.stderr) == (2, "error: -f: names no file\n")


def test_more_simulated_nodes_than_there_may_be_are_refused_before_they_are_made(hoss):
    refused = hoss("nodes", "add", "--count", "1000000000")
    assert refused.exit_code == 2
    assert "--count" in refused.stderr


def test_a_dump_that_is_no_text_is_refused(hoss, tmp_path):
    file = tmp_path / "dump"
    file.write_bytes(b"\x80")
    refused = hoss("ledger", "restore", str(file))
    assert (refused.exit_code, refused.stderr) == (2, f"error: {file}: is no dump: 0x80 is no UTF-8\n")
