"""The guard on a ledger in memory, of one shard and of several."""

import asyncio
from typing import Any

import pytest
from pods_in_memory import PodsInMemory

from hoss.errors import LedgerUnavailable
from hoss.wire.columns import NONE_U32, decode_uids, uid_from_text
from resolver.binding_guard import BindingGuard
from resolver.core.binding_review import Review
from resolver.ledger.memory import MemoryLedger
from resolver.nodes import shard_of


class Ground:
    """A guard, its ledger and its pods. `problem` is what availability says."""

    def __init__(self, shards: int) -> None:
        self.ledger = MemoryLedger(shards, lambda: 0)
        self.pods = PodsInMemory()
        self.problem = ""
        self.guard = self.another_guard("guard")

    def another_guard(self, name: str) -> BindingGuard:
        async def decide(shard: int, proposal: Any) -> Any:
            await asyncio.sleep(0)
            (decision,) = await self.ledger.commit(shard, [proposal])
            return decision

        return BindingGuard(
            self.ledger, decide, self.pods, name=name, exempt=["kube-system"], problem=lambda: self.problem
        )

    async def add_nodes(self, *nodes: Any) -> None:
        for node in nodes:
            await self.ledger.upsert_nodes(shard_of(node.name, self.ledger.shards), [node])

    def pod(self, name: str, *, cpu: str = "100m", namespace: str = "default", **container: Any) -> Any:
        resources = {"requests": {"cpu": cpu}}
        return self.pods.add(
            name, namespace=namespace, containers=[{"name": "c", "image": "i", "resources": resources, **container}]
        )

    async def requested_cpu(self) -> int:
        rows = [(await self.ledger.state(shard)).reservations.records for shard in range(self.ledger.shards)]
        return sum(int(records["requests"][:, 0].sum()) for records in rows)

    async def holds(self, pod: Any) -> int:
        """How many reservations the pod has."""
        uids = decode_uids(uid_from_text(pod["metadata"]["uid"]))
        found = [await self.ledger.lookup(shard, uids) for shard in range(self.ledger.shards)]
        return sum(int(records["node"][0]) != NONE_U32 for records in found)


@pytest.fixture(
    params=[(1, False), (1, True), (3, False), (3, True)], ids=lambda of: f"{of[0]} shards, watched: {of[1]}"
)
def ground(request: pytest.FixtureRequest) -> Ground:
    shards, watched = request.param
    ground = Ground(shards)
    ground.pods.watched = watched
    return ground


def _review(pod: Any, node: str, *, dry_run: bool = False, with_uid: bool = True) -> Review:
    metadata = pod["metadata"]
    uid = uid_from_text(metadata["uid"]) if with_uid else b""
    return Review("q", metadata["namespace"], metadata["name"], uid, node, dry_run)


async def test_bindings_judged_at_once_never_overcommit_and_use_all_there_is(ground: Ground, make_node: Any) -> None:
    await ground.add_nodes(make_node("n1", cpu=1000))
    pods = [ground.pod(f"p{i}", cpu="300m") for i in range(20)]
    answers = await asyncio.gather(*(ground.guard.judge(_review(pod, "n1")) for pod in pods))
    assert sum(answer.allowed for answer in answers) == 3
    assert await ground.requested_cpu() == 900
    refused = next(answer for answer in answers if not answer.allowed)
    assert "asks for 300m of cpu, and " in refused.message
    assert ground.guard.counters == {"guard_reserved": 3, "guard_conflict_resource": 17}


async def test_two_bindings_of_one_pod_at_once_reserve_once_on_one_shard(make_node: Any) -> None:
    ground = Ground(1)
    await ground.add_nodes(make_node("n1"), make_node("n2"))
    pod = ground.pod("p")
    answers = await asyncio.gather(*(ground.guard.judge(_review(pod, node)) for node in ("n1", "n2")))
    assert [answer.allowed for answer in answers] == [True, False]
    assert "room is reserved for pod default/p on node n1" in answers[1].message
    assert await ground.holds(pod) == 1


async def test_of_bindings_of_one_pod_at_once_on_several_shards_one_at_most_reserves(make_node: Any) -> None:
    """Each sees the others after it has reserved, and gives its own back."""
    ground = Ground(3)
    names = [next(name for name in map("n{}".format, range(99)) if shard_of(name, 3) == shard) for shard in range(3)]
    await ground.add_nodes(*map(make_node, names))
    guards = [ground.another_guard(f"guard-{number}") for number in range(2)]
    for number in range(5):
        pod = ground.pod(f"p{number}")
        asked = [guards[turn % 2].judge(_review(pod, name)) for turn, name in enumerate(names)]
        allowed = sum(answer.allowed for answer in await asyncio.gather(*asked))
        assert await ground.holds(pod) == allowed <= 1
        answers = [await ground.guard.judge(_review(pod, name)) for name in names]
        assert [answer.verdict for answer in answers].count("reserved_elsewhere") == 2
        assert await ground.holds(pod) == 1


async def test_a_watched_pod_is_judged_by_one_question_to_a_ledger_of_one_shard(make_node: Any) -> None:
    ground = Ground(1)
    ground.pods.watched = True
    await ground.add_nodes(make_node("n1"), make_node("n2"))
    assert (await ground.guard.judge(_review(ground.pod("first"), "n1"))).allowed

    async def lookup(*_: Any) -> Any:
        pytest.fail("it was looked up")

    ground.ledger.lookup, looked_up = lookup, ground.ledger.lookup
    pod = ground.pod("p")
    assert (await ground.guard.judge(_review(pod, "n1"))).verdict == "reserved"
    assert (await ground.guard.judge(_review(pod, "n1"))).verdict == "standing"
    ground.pods.found = 0
    ground.ledger.lookup = looked_up
    assert (await ground.guard.judge(_review(pod, "n2"))).verdict == "reserved_elsewhere"
    assert ground.pods.found == 0


async def test_a_pod_that_holds_room_on_one_shard_gets_none_on_another(make_node: Any) -> None:
    ground = Ground(3)
    names = [f"n{i}" for i in range(10)]
    here = names[0]
    there = next(name for name in names if shard_of(name, 3) != shard_of(here, 3))
    await ground.add_nodes(make_node(here), make_node(there))
    pod = ground.pod("p")
    for with_uid in (True, False):
        assert (await ground.guard.judge(_review(pod, here, with_uid=with_uid))).allowed
        answer = await ground.guard.judge(_review(pod, there, with_uid=with_uid))
        assert (answer.verdict, answer.code) == ("reserved_elsewhere", 409)
    assert await ground.holds(pod) == 1


async def test_a_reservation_is_the_pass_and_the_pod_is_not_even_read(ground: Ground, make_node: Any) -> None:
    await ground.add_nodes(make_node("n1"))
    pod = ground.pod("p")
    assert (await ground.guard.judge(_review(pod, "n1"))).verdict == "reserved"
    asked = ground.pods.found
    assert (await ground.guard.judge(_review(pod, "n1"))).verdict == "standing"
    assert ground.pods.found == asked


async def test_every_reservation_is_a_commit_of_its_own_so_that_each_ends_by_itself(
    ground: Ground, make_node: Any
) -> None:
    await ground.add_nodes(make_node("n1"))
    pods = [ground.pod(f"p{i}") for i in range(5)]
    await asyncio.gather(*(ground.guard.judge(_review(pod, "n1")) for pod in pods))
    records = (await ground.ledger.state(shard_of("n1", ground.ledger.shards))).reservations.records
    assert len(set(records["seq"].tolist())) == 5


async def test_a_dry_run_says_what_would_be_and_leaves_no_trace(ground: Ground, make_node: Any) -> None:
    await ground.add_nodes(make_node("n1", cpu=1000))
    before = await ground.ledger.seq(shard_of("n1", ground.ledger.shards))
    small, large = ground.pod("small"), ground.pod("large", cpu="1001m")
    assert (await ground.guard.judge(_review(small, "n1", dry_run=True))).verdict == "would_fit"
    assert (await ground.guard.judge(_review(large, "n1", dry_run=True))).verdict == "conflict_resource"
    assert await ground.holds(small) == 0
    assert await ground.ledger.seq(shard_of("n1", ground.ledger.shards)) == before


async def test_a_host_port_that_is_taken_is_named(ground: Ground, make_node: Any) -> None:
    await ground.add_nodes(make_node("n1"))
    ports = [{"containerPort": 80, "hostPort": 8080}]
    first, second = (ground.pod(name, ports=ports) for name in ("first", "second"))
    assert (await ground.guard.judge(_review(first, "n1"))).allowed
    answer = await ground.guard.judge(_review(second, "n1"))
    assert answer.verdict == "conflict_port"
    assert "its host port 8080 is taken there" in answer.message


async def test_a_cordon_is_the_scheduler_s_to_know(ground: Ground, make_node: Any) -> None:
    await ground.add_nodes(make_node("n1", unschedulable=True))
    assert (await ground.guard.judge(_review(ground.pod("p"), "n1"))).verdict == "reserved"


async def test_a_resource_that_no_node_offers_does_not_fit_anywhere(ground: Ground, make_node: Any) -> None:
    await ground.add_nodes(make_node("n1"))
    resources = {"requests": {"example.com/fpga": "1"}, "limits": {"example.com/fpga": "1"}}
    answer = await ground.guard.judge(_review(ground.pod("p", resources=resources), "n1"))
    assert answer.message.endswith("asks for 1 of example.com/fpga, and none is free")
    assert "example.com/fpga" not in await ground.ledger.schema()


async def test_a_pod_that_cannot_be_counted_is_denied_with_the_field(ground: Ground, make_node: Any) -> None:
    await ground.add_nodes(make_node("n1"))
    answer = await ground.guard.judge(_review(ground.pod("p", cpu="9007199254741000"), "n1"))
    assert answer.verdict == "unreadable"
    assert "pod.spec.containers[0].resources.requests.cpu" in answer.message


async def test_a_node_that_is_gone_is_as_unknown_as_one_that_never_was(ground: Ground, make_node: Any) -> None:
    await ground.add_nodes(make_node("n1"))
    pod = ground.pod("p")
    assert (await ground.guard.judge(_review(pod, "never"))).verdict == "unknown_node"
    assert (await ground.guard.judge(_review(ground.pod("first"), "n1"))).allowed
    await ground.ledger.remove_nodes(shard_of("n1", ground.ledger.shards), ["n1"])
    assert (await ground.guard.judge(_review(pod, "n1"))).verdict == "unknown_node"


async def test_an_exempt_namespace_is_allowed_whatever_is_the_matter(ground: Ground) -> None:
    ground.problem = "the ledger is away"
    assert (await ground.guard.judge(_review(ground.pod("p", namespace="kube-system"), "never"))).verdict == "exempt"


async def test_while_the_ledger_is_away_there_is_no_answer(ground: Ground, make_node: Any) -> None:
    await ground.add_nodes(make_node("n1"))
    ground.problem = "the ledger is away"
    with pytest.raises(LedgerUnavailable, match="the ledger is away"):
        await ground.guard.judge(_review(ground.pod("p"), "n1"))


async def test_a_guard_that_was_fenced_registers_again_and_answers(ground: Ground, make_node: Any) -> None:
    await ground.add_nodes(make_node("n1"))
    assert (await ground.guard.judge(_review(ground.pod("first"), "n1"))).allowed
    await ground.ledger.grant("guard")
    assert (await ground.guard.judge(_review(ground.pod("second"), "n1"))).verdict == "reserved"


async def test_two_guards_do_not_disturb_each_other(ground: Ground, make_node: Any) -> None:
    await ground.add_nodes(make_node("n1", cpu=1000))
    other = ground.another_guard("other")
    pods = [ground.pod(f"p{i}", cpu="300m") for i in range(10)]
    asked = [guard.judge(_review(pod, "n1")) for guard, pod in zip([ground.guard, other] * 5, pods, strict=True)]
    assert sum(answer.allowed for answer in await asyncio.gather(*asked)) == 3


async def test_a_node_is_judged_only_when_all_that_stands_on_it_is_in_the_ledger(
    ground: Ground, make_node: Any
) -> None:
    """Or else a ledger that is being filled would seem to have room everywhere."""
    await ground.add_nodes(make_node("n1", cpu=1000))
    standing = ground.pods.add("standing", nodeName="n1", containers=[])
    pod = ground.pod("p")
    with pytest.raises(LedgerUnavailable, match="1 of the 1 pods on node n1 are not in the ledger"):
        await ground.guard.judge(_review(pod, "n1"))
    ground.pods.remove("standing")
    once = ground.pod("once")
    assert (await ground.guard.judge(_review(once, "n1"))).allowed
    ground.pods.add("standing", uid=uid_from_text(standing["metadata"]["uid"]), nodeName="n1", containers=[])
    assert (await ground.guard.judge(_review(pod, "n1"))).allowed  # asked once: later ones are the mirror's to tell
