"""Where the policy in force comes from, which wins over a restart, and what is refused."""

import random

import pytest

from dispatcher.core.machine import Machine, Settings
from dispatcher.core.policy.rules import Policy
from dispatcher.journal.memory import MemoryJournal
from dispatcher.ledger.nodes import ClusterNodes
from dispatcher.policy.source import ActivePolicy, StaleVersion
from dispatcher.runtime import Runtime
from hoss.errors import ConfigError, LedgerUnavailable

BAD = "kind: Nonsense\n"


def document(name):
    head = "apiVersion: hoss.dev/v1alpha1\nkind: SchedulingPolicy\n"
    return f"{head}metadata: {{name: {name}}}\nrules: [{{name: all}}]\n"


class DoubtfulJournal(MemoryJournal):
    """Refuses to keep policies while it is `away`."""

    away = False

    async def save_policy(self, policy):
        if self.away:
            raise LedgerUnavailable("Redis is away")
        await super().save_policy(policy)


@pytest.fixture
def journal():
    return DoubtfulJournal()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "policy.yaml"


@pytest.fixture
def start(journal):
    """Begin a life of the dispatcher, with a policy file or without."""

    async def begin(file=None):
        machine = Machine(Settings(), Policy(), lambda _: None, random.Random(1))
        runtime = Runtime(machine, None, journal)
        policies = ActivePolicy(runtime, ClusterNodes(), file)
        await policies.restore()
        return policies

    return begin


def state(policies):
    told = policies.message(with_text=True)
    assert told.version == policies.policy.version
    return told.name, told.version, told.source


async def test_without_a_file_every_worker_may_have_every_pod(start):
    assert state(await start()) == ("default", 1, "default")


async def test_a_file_is_followed_while_running(start, file):
    file.write_text(document("one"))
    policies = await start(file)
    assert state(policies) == ("one", 1, f"file {file}")
    file.write_text(document("two"))
    await policies.poll_file()
    assert state(policies) == ("two", 2, f"file {file}")
    await policies.poll_file()
    assert state(policies)[1] == 2


async def test_a_mounted_config_map_is_followed_when_its_link_is_exchanged(start, tmp_path):
    for life in ("1", "2"):
        (tmp_path / f"..data_{life}").mkdir()
        (tmp_path / f"..data_{life}" / "policy.yaml").write_text(document(f"life-{life}"))
    (tmp_path / "..data").symlink_to("..data_1")
    (tmp_path / "policy.yaml").symlink_to("..data/policy.yaml")
    policies = await start(tmp_path / "policy.yaml")
    (tmp_path / "..data_new").symlink_to("..data_2")
    (tmp_path / "..data_new").replace(tmp_path / "..data")
    await policies.poll_file()
    assert state(policies)[:2] == ("life-2", 2)


@pytest.mark.parametrize("bad", [BAD, document("No Name"), None])
async def test_a_bad_file_leaves_the_old_policy_and_says_why(start, file, bad):
    file.write_text(document("one"))
    policies = await start(file)
    file.unlink() if bad is None else file.write_text(bad)
    await policies.poll_file()
    assert state(policies)[:2] == ("one", 1)
    refusal = policies.message(with_text=False).refusal
    assert (refusal.source, str(file) in refusal.reason) == (f"file {file}", True)
    (problem,) = policies.problems()
    assert problem.startswith(f"the policy of file {file} is refused, version 1 stays: ")
    file.write_text(document("one"))  # as it was
    await policies.poll_file()
    assert not policies.problems()
    assert state(policies)[:2] == ("one", 1)


async def test_a_bad_policy_by_command_leaves_the_old_one_and_is_remembered(start):
    policies = await start()
    with pytest.raises(ConfigError, match="apiVersion"):
        await policies.set(BAD, 0)
    assert state(policies) == ("default", 1, "default")
    assert policies.message(with_text=False).refusal.source == "command"
    assert not policies.problems()  # whoever set it was told
    await policies.set(document("good"), 0)
    assert not policies.message(with_text=False).HasField("refusal")


async def test_a_policy_by_command_survives_a_restart(start):
    first = await start()
    await first.set(document("mine"), 0)
    since = first.message(with_text=True).since_unix_ms
    second = await start()
    assert state(second) == ("mine", 2, "command")
    assert second.message(with_text=True).yaml == document("mine")
    assert second.message(with_text=True).since_unix_ms == since


async def test_over_a_restart_the_command_wins_if_it_came_after_the_files_content(start, file):
    file.write_text(document("file"))
    await (await start(file)).set(document("mine"), 0)
    assert state(await start(file)) == ("mine", 2, "command")


async def test_over_a_restart_the_file_wins_if_it_changed_after_the_command(start, file):
    file.write_text(document("file"))
    await (await start(file)).set(document("mine"), 0)
    file.write_text(document("newer"))
    assert state(await start(file)) == ("newer", 3, f"file {file}")


async def test_a_file_that_is_asked_for_for_the_first_time_is_the_latest_change(start, file):
    await (await start()).set(document("mine"), 0)
    file.write_text(document("file"))
    assert state(await start(file))[:2] == ("file", 3)


async def test_a_policy_from_a_file_goes_when_the_file_is_not_asked_for_any_more(start, file):
    file.write_text(document("file"))
    await start(file)
    assert state(await start()) == ("default", 2, "default")


async def test_a_bad_file_refuses_the_very_first_start_only(start, file):
    for bad, told in ((BAD, "apiVersion"), ("", "is empty")):
        file.write_text(bad)
        with pytest.raises(ConfigError, match=rf"policy.yaml.*{told}"):
            await start(file)
    file.write_text(document("one"))
    await start(file)
    file.write_text(BAD)
    policies = await start(file)
    assert state(policies)[:2] == ("one", 1)
    assert policies.problems()


async def test_a_kept_policy_that_this_release_refuses_ends_the_start_and_says_what_to_do(
    start, journal, file
):
    await (await start()).set(document("mine"), 0)
    kept = await journal.saved_policy()
    await journal.save_policy(type(kept)(kept.version, BAD, kept.source, kept.since_ms, ""))
    with pytest.raises(ConfigError, match=r"version 2 in the journal.*--policy FILE"):
        await start()
    file.write_text(document("file"))
    assert state(await start(file))[:2] == ("file", 3)


async def test_a_version_is_replaced_once_only(start):
    policies = await start()
    await policies.set(document("first"), 1)
    with pytest.raises(StaleVersion, match="version 1 is not in force any more: 2 is"):
        await policies.set(document("second"), 1)
    assert state(policies)[:2] == ("first", 2)


async def test_a_policy_that_cannot_be_made_durable_is_not_in_force(start, journal, file):
    file.write_text(document("one"))
    policies = await start(file)
    journal.away = True
    with pytest.raises(LedgerUnavailable):
        await policies.set(document("mine"), 0)
    file.write_text(document("two"))
    await policies.poll_file()
    assert state(policies)[:2] == ("one", 1)
    journal.away = False
    await policies.poll_file()
    assert state(policies)[:2] == ("two", 2)
