"""`hoss history check` and `record` as they are typed: exit codes, what is printed, and bad input."""

import json

from histories import SmallPlatform, play

from hossctl.history.events import Event, written


def text_of(events: list[Event]) -> str:
    return "".join(map(written, events))


def broken() -> list[Event]:
    """Two pods of 600 on a node of 1000, and a lost one."""
    platform = SmallPlatform()
    platform.node("n0")
    platform.submit("r", 3, cpu=600)
    platform.bind("r-0", "n0")
    platform.bind("r-1", "n0")
    del platform.pods["r-2"]
    return platform.end()


def test_a_history_that_keeps_its_promises_is_a_table_and_exit_code_0(hoss, tmp_path):
    (tmp_path / "history.jsonl").write_text(text_of(play(3)))
    done = hoss("history", "check", "history.jsonl")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].split("   ")[0] == "PROMISE"
    assert [line.split()[0] for line in lines[1:12]][:2] == ["no-overcommit", "one-node"]


def test_violations_come_with_lines_and_exit_code_1(hoss):
    events = broken()
    done = hoss("history", "check", "-", stdin=text_of(events))
    assert done.exit_code == 1
    overcommit = next(line for line in done.stdout.splitlines() if "violated: no-overcommit" in line)
    assert overcommit.endswith("node n0: 1200 of cpu are held and 1000 are allocatable")
    document = json.loads(hoss("history", "check", "-", "-o", "json", stdin=text_of(events)).stdout)
    first = next(each for each in document["violations"] if each["promise"] == "no-overcommit")
    shown = [events[line - 1]["event"] for line in first["lines"]]
    assert shown == ["node", "ledger", "ledger"]
    assert first["at"] == events[first["lines"][-1] - 1]["at"]
    assert {row["promise"]: row["violations"] for row in document["promises"]}["nothing-lost"] == 1


def test_a_table_shows_the_first_violations_and_says_how_many_more_there_are(hoss):
    platform = SmallPlatform()
    platform.submit("r", 30)
    platform.pods.clear()
    done = hoss("history", "check", "-", stdin=text_of(platform.end()))
    assert done.stdout.count("violated: nothing-lost") == 20
    assert "; -o json has all" in done.stdout


def test_a_file_that_is_no_history_is_refused_with_its_line_and_exit_code_2(hoss, tmp_path):
    whole = text_of(play(3))
    (tmp_path / "cut.jsonl").write_text(whole[:-20])
    cut = hoss("history", "check", "cut.jsonl")
    assert cut.exit_code == 2
    number = len(whole.splitlines())
    assert f"cut.jsonl line {number}: is cut off, as by a recorder that was killed; delete" in cut.output
    missing = hoss("history", "check", "missing.jsonl")
    assert (missing.exit_code, "missing.jsonl: cannot be read: No such file" in missing.output) == (2, True)
    other = hoss("history", "check", "-", stdin="kind: Pod\n")
    assert (other.exit_code, "stdin line 1: is not JSON" in other.output) == (2, True)


def test_a_history_in_which_nothing_can_be_judged_is_exit_code_2(hoss):
    done = hoss("history", "check", "-", stdin=text_of(play(3)[:2]))
    assert done.exit_code == 2
    assert "nothing could be judged" in done.stderr


def test_without_a_platform_nothing_is_recorded_and_no_file_is_replaced(hoss, tmp_path, monkeypatch):
    monkeypatch.delenv("HOSS_DISPATCHER")
    (tmp_path / "history.jsonl").write_text("precious")
    done = hoss("history", "record", "--out", "history.jsonl", "--seconds", "1")
    assert (done.exit_code, "no platform is running here" in done.output) == (3, True)
    assert (tmp_path / "history.jsonl").read_text() == "precious"
