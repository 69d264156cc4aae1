"""What a run of the tests says of itself: where the time went, and in continuous integration which skips
nobody expected."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

TESTS = Path(__file__).parents[1]
CONFTEST = """\
from run_report import RunReport

def pytest_configure(config):
    config.pluginmanager.register(RunReport(), "run report")
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`run(text_of_a_test_file, ci=...)`: the exit code and what was printed."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST)
    monkeypatch.setenv("PYTHONPATH", f"{TESTS}:{TESTS.parent}")

    def execute(text: str, *options: str, ci: bool) -> tuple[int, str]:
        (tmp_path / "tests" / "test_made_up.py").write_text(f"import pytest, time\n\n{text}")
        monkeypatch.setenv("CI", "true") if ci else monkeypatch.delenv("CI", raising=False)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "tests"]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return ran.returncode, ran.stdout

    return execute


SKIPS = "def test_that_says_nothing():\n    pytest.skip({reason!r})\n\ndef test_that_passes():\n    pass\n"


def test_a_skip_that_nobody_expected_fails_a_run_of_continuous_integration_and_is_named(run):
    code, said = run(SKIPS.format(reason="not in the mood"), ci=True)
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "UNEXPECTED SKIP tests/test_made_up.py::test_that_says_nothing: Skipped: not in the mood" in said


def test_elsewhere_it_does_not(run):
    code, said = run(SKIPS.format(reason="not in the mood"), ci=False)
    assert code == pytest.ExitCode.OK
    assert "UNEXPECTED" not in said


SPENDS = """\
def spend():
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass

@pytest.fixture
def dear():
    spend()
    yield
    spend()

def test_that_is_dear(dear):
    spend()
"""


def test_an_expected_skip_fails_nothing_and_the_cpu_time_of_a_test_is_of_all_of_it(run, tmp_path):
    text = SKIPS.format(reason="no Docker engine: no docker on PATH") + "\n" + SPENDS
    code, said = run(text, "--junitxml=report.xml", ci=True)
    assert code == pytest.ExitCode.OK
    assert "UNEXPECTED" not in said
    cases = {case.get("name"): case for case in ET.parse(tmp_path / "report.xml").iter("testcase")}
    spent = {
        each.get("name"): float(each.get("value")) for each in cases["test_that_is_dear"].iter("property")
    }
    assert spent["cpu_seconds"] >= 0.3
