"""What a run of the tests says of itself: what this machine lacks, what was skipped, and where the time went.

With CI set, a skip that EXPECTED_SKIPS does not name fails the run: a test that silently stopped running
proves nothing."""

import contextlib
import os
import re
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import pytest
from fork_server import FORK_SERVER
from machine import lacking

# Reasons of skips that are right, as regular expressions, and why they are.
EXPECTED_SKIPS = {
    r"no Docker engine": (
        "machines of continuous integration have none; tests/unit/deploy reads the compose file"
    ),
    r"no (spin|gcc)": "spin is a package of few systems; the models change with the protocol only",
    r"no network namespaces|no (ip|tc)": (
        "containers may not make them; the other faults are tried all the same"
    ),
    r"no Go": "few machines have it; tests/e2e/test_sdk.py runs the same scheduler in Python",
    r"no libfaketime": "it is a package of few systems; simulations step clocks everywhere",
    r"no file system can be mounted|no cgroup": "these take root",
    r"no kubelet": "it takes root, containerd, and a build of its own (make kubelet)",
    r"could not import 'scipy'": "only an example needs it; the other algorithms are tried all the same",
    r"the openb trace is not in": "it is no part of the project; tests/traces has a small one that is",
}
_MOST = 10
_CPU = "cpu_seconds"


@dataclass
class _Spent:
    """Of a folder or a test: seconds on the clock and of CPU time."""

    tests: int = 0
    wall: float = 0.0
    cpu: float = 0.0

    def add(self, wall: float, cpu: float, *, tests: int = 0) -> None:
        """Of one more."""
        self.tests += tests
        self.wall += wall
        self.cpu += cpu


class RunReport:
    """Collects in the process that prints; the CPU time comes with the reports of those that run."""

    def __init__(self) -> None:
        self._spent: dict[str, _Spent] = defaultdict(_Spent)
        self._unexpected: dict[str, str] = {}
        self._before = 0.0
        self._to_collect: list[float] = []  # seconds of CPU time, by process

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Each process imports and collects all tests before its first one."""
        spent = time.process_time()
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_CPU] = spent
        elif session.items:
            self._to_collect.append(spent)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A process of pytest-xdist has ended."""
        with contextlib.suppress(AttributeError, KeyError):  # one that was killed has said nothing
            self._to_collect.append(node.workeroutput[_CPU])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, Any, Any]:
        """Of the whole test, fixtures included. Shared servers and processes that go on are not counted
        before they end."""
        self._before = _cpu_seconds()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Send along the CPU time of the test with its last report, which goes to the JUnit file, too."""
        report = yield
        if call.when == "teardown":
            report.user_properties.append((_CPU, _cpu_seconds() - self._before))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a phase of a test."""
        spent = self._spent[report.nodeid]
        spent.tests = 1
        spent.wall += report.duration
        spent.cpu = dict(report.user_properties).get(_CPU, spent.cpu)
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            if not any(re.search(expected, reason) for expected in EXPECTED_SKIPS):
                self._unexpected[report.nodeid] = reason

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run of continuous integration that proves less than it says."""
        if self._unexpected and "CI" in os.environ and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print it."""
        for line in lacking():
            terminalreporter.write_line(f"not on this machine: {line}")
        if "CI" in os.environ:
            for test, reason in self._unexpected.items():
                terminalreporter.write_line(f"UNEXPECTED SKIP {test}: {reason}", red=True)
        if len(self._spent) < 10 * _MOST or hasattr(terminalreporter.config, "workerinput"):
            return
        terminalreporter.section("where the time went: tests, seconds, seconds of CPU time")
        for name, spent in sorted(self._by(_folder_of).items()):
            terminalreporter.write_line(f"{spent.tests:6} {spent.wall:8.1f} {spent.cpu:8.1f}  {name}")
        processes, spent_before = len(self._to_collect), sum(self._to_collect)
        terminalreporter.write_line(
            f"{'':15} {spent_before:8.1f}  to import and collect, processes: {processes}"
        )
        files, tests = self._by(_file_of), self._spent
        for title, chosen, key in (
            ("slowest", tests, lambda spent: spent.wall),
            ("dearest", tests, lambda spent: spent.cpu),
            ("dearest files", files, lambda spent: spent.cpu),
        ):
            terminalreporter.write_line(f"the {_MOST} {title}:")
            for name, spent in sorted(chosen.items(), key=lambda item: -key(item[1]))[:_MOST]:
                terminalreporter.write_line(f"{spent.tests:6} {spent.wall:8.1f} {spent.cpu:8.1f}  {name}")

    def _by(self, group_of: Callable[[str], str]) -> dict[str, _Spent]:
        groups: dict[str, _Spent] = defaultdict(_Spent)
        for test, spent in self._spent.items():
            groups[group_of(test)].add(spent.wall, spent.cpu, tests=spent.tests)
        return groups


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def _folder_of(test: str) -> str:
    parts = _file_of(test).split("/")
    return "/".join(parts[:3] if parts[1:2] == ["e2e"] and len(parts) > 3 else parts[:2])


def _cpu_seconds() -> float:
    """Of this process, of what it has started and waited for, and of what the fork server has."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used) + FORK_SERVER.ended_cpu_seconds()
