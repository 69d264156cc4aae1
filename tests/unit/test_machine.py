"""What the tests take from the machine, and what not."""

import os
import subprocess
from pathlib import Path

from fork_server import ROOT
from machine import forget_users_settings

from hoss.client.access import found_access
from hoss.contexts import home


def test_settings_of_whoever_runs_the_tests_are_forgotten_and_those_for_tests_are_not() -> None:
    environment = {
        "HOSS_TLS_DIR": "/home/ana/tls",
        "HOSS_TOKEN": "secret",
        "HOSS_CONTEXT": "production",
        "HOSS_DISPATCHER": "production:7070",
        "HOSS_HOME": "/home/ana/.hoss",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318",
        "HOSS_TEST_REDIS": "oldest",
        "HOSS_TESTS": "soak",
        "PATH": "/bin",
    }
    forget_users_settings(environment)
    assert environment.pop("HOSS_HOME") != "/home/ana/.hoss"
    assert environment == {"HOSS_TEST_REDIS": "oldest", "HOSS_TESTS": "soak", "PATH": "/bin"}


def test_this_run_has_forgotten_them() -> None:
    assert {name for name in os.environ if name.startswith("HOSS_") and "TEST" not in name} <= {
        "HOSS_HOME", "HOSS_BUILD_OPTIONS", "HOSS_CONTROLPLANE_CACHE", "HOSS_FAKETIME",
    }  # fmt: skip
    assert home() != Path.home() / ".hoss"
    assert not home().exists()
    assert found_access(["127.0.0.1:7070"]).tls_dir is None


def test_make_says_in_one_line_that_there_is_no_directory_for_temporary_files(tmp_path: Path) -> None:
    def make(folders: str) -> subprocess.CompletedProcess[str]:
        command = ["make", "--silent", "temporary", f"TEMPORARY={folders}"]
        # Under another make, such as `make -j2`, it would say more.
        of_make = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL"}
        environment = {name: value for name, value in os.environ.items() if name not in of_make}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    refused = make(f"'' {tmp_path}/none")
    said, *rest = refused.stderr.splitlines()
    assert refused.returncode == 2
    assert said.endswith("name a directory of yours with TMPDIR")
    assert len(rest) == 1  # make's own, which names the target
    assert make(f"'' {tmp_path}/none {tmp_path}").returncode == 0
