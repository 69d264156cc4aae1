"""What commands print, and with which code they end."""

import json
import tempfile

import pytest
import yaml

from hoss import version
from hoss.errors import LedgerUnavailable, TransportError
from hoss.v1 import dispatcher_pb2 as pb
from hossctl.cli import report
from hossctl.command_table import COMMANDS, PANELS

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: i}]}\n"
JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: j}
spec: {parallelism: 3, template: {spec: {containers: [{name: c, image: i}]}}}
"""
NODE = """\
apiVersion: v1
kind: Node
metadata: {name: n}
status: {allocatable: {cpu: '4', memory: 8Gi, pods: '110'}}
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(hoss, command):
    result = hoss(command, "--help")
    assert result.exit_code == 0
    assert "Usage: hoss" in result.stdout


def test_help_shows_every_command_once_beginning_with_those_that_one_begins_with(hoss):
    assert sorted(name for names in PANELS.values() for name in names) == sorted(COMMANDS)
    lines = hoss("--help").stdout.splitlines()
    places = [next(i for i, line in enumerate(lines) if f" {panel} " in line) for panel in PANELS]
    assert places == sorted(places)
    assert "demo" in lines[places[0] + 1]


def test_the_version_is_printed_and_nothing_is_done(hoss):
    result = hoss("--version")
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"hoss {version()}\n", "")
    assert hoss("--version", "get", "nosuch").stdout == f"hoss {version()}\n"


def test_a_mistyped_command_is_corrected(hoss):
    result = hoss("sumbit")
    assert result.exit_code == 2
    assert "Did you mean 'submit'" in result.stderr


def test_without_a_platform_the_error_says_how_to_get_one(hoss, monkeypatch):
    monkeypatch.delenv("HOSS_DISPATCHER")
    result = hoss("get", "pods")
    assert result.exit_code == 3
    assert result.stderr == (
        "error: no platform is running here: start one with `hoss up`, or name one with --dispatcher\n"
    )


@pytest.mark.parametrize("error", [TransportError("nobody answers"), LedgerUnavailable("redis is away")])
def test_what_cannot_be_reached_is_code_3_and_one_line(hoss, error):
    hoss.dispatcher.fails_with = error
    result = hoss("get", "pods")
    assert result.exit_code == 3
    assert result.stderr == f"error: {error}\n"


def test_a_machine_without_a_directory_for_temporary_files_is_one_line_with_the_way_out(monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/nowhere"])
    with pytest.raises(FileNotFoundError) as caught:
        tempfile.mkdtemp()
    report(caught.value)
    told = "error: No usable temporary directory found in ['/proc/nowhere']: name a directory of yours with TMPDIR\n"
    assert capsys.readouterr().err == told


def test_an_address_without_a_port_is_bad_input(hoss):
    result = hoss("get", "pods", "--dispatcher", "localhost")
    assert result.exit_code == 2
    assert "'localhost' is no address; give host:port" in result.stderr


def test_an_unknown_kind_names_the_known_ones(hoss):
    result = hoss("get", "podz")
    assert result.exit_code == 2
    assert (
        "'podz' is not listed here; it is one of pods, nodes, workers, jobs, tenants, reservations"
        in result.stderr
    )


def test_pods_as_a_table(hoss, a_pod):
    hoss.dispatcher.pods = [
        a_pod("web-0", node="n1", attempts=1),
        a_pod("web-1", pb.UNSCHEDULABLE, reason="no room"),
    ]
    lines = hoss("get", "pods").stdout.splitlines()
    assert lines[0].split() == ["NAME", "PHASE", "NODE", "ATTEMPTS", "AGE", "REASON"]
    assert lines[1].split() == ["web-0", "Bound", "n1", "1", "<none>", "<none>"]
    assert lines[2].startswith("web-1   Unschedulable")
    assert lines[2].endswith("no room")


def test_failed_shows_pods_that_were_given_up_and_waiting_those_that_could_not_be_placed_yet(hoss, a_pod):
    hoss.dispatcher.pods = [
        a_pod("good"),
        a_pod("bad", pb.FAILED),
        a_pod("big", pb.UNSCHEDULABLE),
        a_pod("new", pb.QUEUED),
    ]
    assert hoss("get", "pods", "--failed", "-o", "name").stdout == "pod/bad\n"
    assert hoss("get", "pods", "--waiting", "-o", "name").stdout == "pod/big\n"


@pytest.mark.parametrize("arguments", [["retry"], ["retry", "pod"], ["retry", "pod", "a", "--failed"]])
def test_retry_needs_names_or_the_word_that_all_are_meant(hoss, arguments):
    result = hoss(*arguments)
    assert result.exit_code == 2
    assert "give either names" in result.stderr


def test_a_failed_pod_is_described_with_its_faults_and_what_to_do(hoss, a_pod):
    pod = a_pod("bad", pb.FAILED, reason="given up after 5 faults")
    pod.faults.add(at_unix_ms=1000, worker="w1", text="worker w1 was lost while it had this pod in hand")
    hoss.dispatcher.pods = [pod]
    shown = json.loads(hoss("describe", "pod", "bad", "-o", "json").stdout)
    assert shown["faults"][0]["text"] == "worker w1 was lost while it had this pod in hand"
    assert (
        shown["whatToDo"]
        == "see why w1 died, in their logs; once that is mended, `hoss retry pod bad -n default`"
    )


def test_json_is_one_document_on_stdout(hoss, a_pod):
    hoss.dispatcher.pods = [a_pod("web-0"), a_pod("web-1")]
    result = hoss("get", "po", "-o", "json")
    assert [item["name"] for item in json.loads(result.stdout)["items"]] == ["web-0", "web-1"]
    assert result.stderr == ""


def test_one_name_gives_the_object_and_not_a_list(hoss, a_pod):
    hoss.dispatcher.pods = [a_pod("web-0")]
    assert yaml.safe_load(hoss("get", "pod", "web-0", "-o", "yaml").stdout)["name"] == "web-0"


def test_a_name_that_nothing_has_is_code_1(hoss):
    result = hoss("get", "node", "n9")
    assert result.exit_code == 1
    assert result.stderr == "error: node 'n9': is not there; `hoss get nodes` lists all\n"


def test_all_namespaces_have_a_column_for_it(hoss, a_pod):
    hoss.dispatcher.pods = [a_pod("a"), a_pod("b", namespace="other")]
    assert hoss("get", "pods").stdout.count("\n") == 2
    assert [line.split()[0] for line in hoss("get", "pods", "-A").stdout.splitlines()] == [
        "NAMESPACE",
        "default",
        "other",
    ]


def test_workers_are_selected_by_label(hoss):
    for name, tier in (("a", "batch"), ("b", "service")):
        worker = pb.WorkerInfo(name=name, state="Ready")
        worker.labels.add(key="tier", value=tier)
        hoss.dispatcher.workers.append(worker)
    assert hoss("get", "workers", "-l", "tier=service", "-o", "name").stdout == "worker/b\n"


def test_jobs_are_not_selected_by_label(hoss):
    result = hoss("get", "jobs", "-l", "a=b")
    assert result.exit_code == 2
    assert "-l: jobs are not selected by label" in result.stderr


def test_nodes_show_what_is_used_of_what_they_have(hoss, a_node):
    hoss.resolver.nodes = [
        a_node("n1", {"cpu": 4000, "memory": 2**33, "pods": 110}, {"cpu": 1500, "pods": 2}, [500, 0])
    ]
    assert hoss("get", "nodes").stdout.splitlines()[1].split() == [
        "n1",
        "Ready",
        "1.5/4",
        "0/8Gi",
        "2/110",
        "0.5/2",
    ]


def test_describe_shows_a_nodes_pods(hoss, a_node, a_pod):
    hoss.resolver.nodes = [a_node("n1", {"cpu": 4000}, {"cpu": 1000})]
    hoss.dispatcher.pods = [a_pod("here", node="n1"), a_pod("there", node="n2")]
    document = json.loads(hoss("describe", "node", "n1", "-o", "json").stdout)
    assert document["pods"] == ["default/here"]
    assert [pod["pod"] for pod in document["podResources"]] == ["default/here"]
    assert document["utilisation"] == {"cpu": "25.0%"}


def test_describe_says_in_full_why_a_gang_waits(hoss, a_pod):
    reason = (
        "gang g: 1 of the 3 pods it needs fit; for the others 0/2 nodes are available: 2 Insufficient cpu."
    )
    hoss.dispatcher.jobs = [pb.JobInfo(namespace="default", name="g", replicas=3, min_available=3, gang="g")]
    hoss.dispatcher.pods = [a_pod(f"g-{i}", job="g", phase=pb.UNSCHEDULABLE, reason=reason) for i in range(3)]
    assert json.loads(hoss("describe", "job", "g", "-o", "json").stdout)["reasons"] == {
        f"Unschedulable: {reason}": 3
    }
    lines = hoss("get", "jobs", "-o", "wide").stdout.splitlines()
    assert "MIN AVAILABLE" in lines[0]


@pytest.mark.parametrize(
    ("phases", "waits"),
    [
        ((pb.BACKOFF, pb.BACKOFF), True),
        ((pb.BOUND, pb.UNSCHEDULABLE), True),
        ((pb.QUEUED, pb.SCHEDULING), False),
        ((pb.BOUND, pb.BOUND), False),
    ],
)
def test_a_job_is_asked_which_moves_would_help_while_a_pod_of_it_waits_in_backoff_too(
    hoss, a_pod, monkeypatch, phases, waits
):
    """As a pod is: a gang that a change of the cluster sends to backoff says the same as before."""

    async def moves(*_):
        return "fits after moving 1 pod from n0"

    monkeypatch.setattr("hossctl.rebalance.plans.moves_for_job", moves)
    unschedulable = phases.count(pb.UNSCHEDULABLE)
    hoss.dispatcher.jobs = [
        pb.JobInfo(namespace="default", name="g", replicas=2, unschedulable=unschedulable)
    ]
    hoss.dispatcher.pods = [a_pod(f"g-{i}", job="g", phase=phase) for i, phase in enumerate(phases)]
    assert ("rebalancing" in json.loads(hoss("describe", "job", "g", "-o", "json").stdout)) == waits


def test_submit_sends_a_file_and_says_what(hoss, tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    result = hoss("submit", "-f", "job.yaml")
    assert result.exit_code == 0
    assert result.stderr == "job/j submitted (3 pods)\n"
    assert [job.replicas for job in hoss.dispatcher.submitted[0].jobs] == [3]


def test_submit_reads_stdin(hoss):
    assert hoss("submit", "-f", "-", stdin=POD).exit_code == 0
    assert list(hoss.dispatcher.submitted[0].pods.names) == ["a"]


def test_submit_registers_nodes(hoss, tmp_path):
    (tmp_path / "node.yaml").write_text(NODE)
    assert hoss("submit", "-f", "node.yaml").exit_code == 0
    assert [node.name for node in hoss.resolver.upserted] == ["n"]


def test_nothing_is_sent_when_one_of_several_files_is_wrong(hoss, tmp_path):
    (tmp_path / "good.yaml").write_text(POD)
    (tmp_path / "bad.yaml").write_text(POD.replace("image: i", "image: i, resources: {requests: {cpu: 1kk}}"))
    result = hoss("submit", "-f", "good.yaml", "-f", "bad.yaml")
    assert result.exit_code == 2
    assert "bad.yaml document 1" in result.stderr
    assert "1kk" in result.stderr
    assert hoss.dispatcher.submitted == []


def test_a_name_in_two_files_is_refused(hoss, tmp_path):
    (tmp_path / "a.yaml").write_text(POD)
    (tmp_path / "b.yaml").write_text(POD)
    result = hoss("submit", "-f", "a.yaml", "-f", "b.yaml")
    assert result.exit_code == 2
    assert "default/a: is in the files twice" in result.stderr
    assert hoss.dispatcher.submitted == []


def test_other_kinds_are_skipped_with_a_warning(hoss):
    config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: s}\n---\n" + POD
    result = hoss("submit", "-f", "-", "-o", "json", stdin=config)
    assert "warning: stdin document 1" in result.stderr
    assert "ConfigMap" in result.stderr
    assert json.loads(result.stdout)["pods"] == 1


def test_truncated_yaml_names_the_place(hoss):
    result = hoss("submit", "-f", "-", stdin=POD[:-2])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: stdin")
    assert result.stderr.count("\n") <= 2


def test_delete_names_what_was_not_there(hoss, a_pod):
    hoss.dispatcher.pods = [a_pod("a")]
    result = hoss("delete", "pod", "a", "b")
    assert result.exit_code == 1
    assert result.stderr == (
        "deleted 1 pod\nerror: pod b: not there in namespace default; `hoss get pods -A` lists all\n"
    )


def test_cordon_goes_on_after_a_name_that_is_not_there(hoss, a_node):
    hoss.resolver.nodes = [a_node("n1", {}, {})]
    result = hoss("cordon", "node", "nope", "n1")
    assert result.exit_code == 1
    assert hoss.resolver.nodes[0].spec.unschedulable
    assert "error: node nope" in result.stderr
    assert "node n1: Cordoned" in result.stderr


def test_drain_is_for_workers(hoss):
    hoss.dispatcher.workers = [pb.WorkerInfo(name="w1", state="Ready")]
    assert hoss("drain", "worker", "w1").exit_code == 0
    assert hoss.dispatcher.workers[0].state == "Draining"
    assert hoss("drain", "node", "n1").exit_code == 2


def test_status_ends_with_1_while_something_is_wrong(hoss):
    hoss.dispatcher.workers = [pb.WorkerInfo(name="w1", state="Ready")]
    assert hoss("status").exit_code == 0
    hoss.dispatcher.problems = ["no registered worker matches rule gpu: accelerator=gpu; 5 pods wait"]
    result = hoss("status", "-o", "json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["problems"] == hoss.dispatcher.problems


def test_a_format_that_a_command_does_not_have_is_refused(hoss):
    result = hoss("status", "-o", "name")
    assert result.exit_code == 2
    assert "choose one of table, json, yaml" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--worker", "w:tier=a,tier=b"), "label 'tier' is given twice"),
        (("--worker", "w:tier"), "'tier' is no label; write key=value"),
        (("--worker", "w", "--worker", "w"), "name 'w' is given twice"),
        (("--workers", "0"), "no worker"),
        (("--worker", "w=a"), "'w=a' is no name of a worker"),
        (("--nodes", "3", "--nodes-file", "x"), "choose one"),
        (("--nodes-file", "nope.yaml"), "nope.yaml: cannot be read"),
    ],
)
def test_up_refuses_bad_options_before_anything_starts(hoss, tmp_path, arguments, text):
    result = hoss("up", *arguments)
    assert result.exit_code == 2
    assert text in result.stderr
    assert not (tmp_path / "home" / "platform.json").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("ledger", "dump", "."), "error: .: cannot be written: Is a directory\n"),
        (("history", "record", "--out", "."), "error: --out .: cannot be written: Is a directory\n"),
        (("ledger", "restore", "."), "error: .: cannot be read: Is a directory\n"),
        (("history", "check", "."), "error: .: cannot be read: Is a directory\n"),
        (("trace", "a", "--file", "."), "error: .: cannot be read: Is a directory\n"),
        (("explain", "--cases", "."), "error: .: cannot be read: Is a directory\n"),
        (("bench", "report", "."), "error: .: cannot be read: Is a directory\n"),
        (("simulate", "cluster", "--bench", "."), "error: --bench .: cannot be read: Is a directory\n"),
        (
            ("nodes", "add", "--count", "1", "--prefix", "A b"),
            "error: --prefix: 'A b-00000' is no valid name",
        ),
        (("fragmentation", "--label", "a b"), "error: --label: 'a b' is no valid key"),
    ],
)
def test_a_file_or_a_name_that_cannot_be_is_bad_input_and_no_fault_of_ours(hoss, arguments, text):
    result = hoss(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(text)


def test_replay_names_the_missing_column(hoss, tmp_path):
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,gpu,model\nn,1000,0,\n")
    (tmp_path / "pods.csv").write_text("name\n")
    result = hoss("replay", "--nodes", "nodes.csv", "--pods", "pods.csv")
    assert result.exit_code == 2
    assert "nodes.csv line 1: has no column memory_mib" in result.stderr


def test_completion_is_a_script_that_asks_hoss(hoss):
    for shell in ("bash", "zsh", "fish"):
        assert "_HOSS_COMPLETE" in hoss("completion", shell).stdout


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["up", "--nodes", "many"], "--nodes: is 'many', where a whole number from 0 to 1,000,000 belongs"),
        (["up", "--nodes", "-1"], "--nodes: is '-1', where a whole number from 0 to 1,000,000 belongs"),
        (["up", "--workers", "1001"], "--workers: is '1001', where a whole number from 0 to 1,000 belongs"),
        (["up", "--trace", "2"], "--trace: is '2', where a number from 0 to 1 belongs"),
        (["logs", "--tail", "1.5"], "--tail: is '1.5', where a whole number of at least 0 belongs"),
        (
            ["demo", "-o", "jsn"],
            "--output: is 'jsn', where table, wide, json, yaml or name belongs; did you mean 'json'?",
        ),
        (["completion", "tcsh"], "SHELL: is 'tcsh', where bash, zsh or fish belongs"),
        (
            ["plugin", "check", "a.py", "--timeout", "soon"],
            "--timeout: is 'soon', where a number of at least 0.1 belongs",
        ),
    ],
)
def test_a_wrong_value_of_an_option_is_told_in_our_words(hoss, arguments, problem):
    result = hoss(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {problem}")
    assert result.stderr.count("\n") == 1
