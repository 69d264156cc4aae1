"""The guard on a ledger in memory, of one shard and of several."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from webhook_in_memory import WebhookCluster, review_of

from hoss.errors import LedgerUnavailable, TransportError
from resolver.core.values import ReservationState
from resolver.messages.nodes import shard_of

ROOT = Path(__file__).parents[3]


@pytest.fixture(
    params=[(1, False), (1, True), (3, False), (3, True)], ids=lambda of: f"{of[0]} shards, watched: {of[1]}"
)
def cluster(request: pytest.FixtureRequest) -> WebhookCluster:
    shards, watched = request.param
    cluster = WebhookCluster(shards)
    cluster.pods.watched = watched
    return cluster


async def test_bindings_judged_at_once_never_overcommit_and_use_all_there_is(
    cluster: WebhookCluster, make_node: Any
) -> None:
    await cluster.add_nodes(make_node("n1", cpu=1000))
    pods = [cluster.pod(f"p{i}", cpu="300m") for i in range(20)]
    answers = await asyncio.gather(*(cluster.guard.review(review_of(pod, "n1")) for pod in pods))
    assert sum(answer.allowed for answer in answers) == 3
    assert await cluster.requested_cpu() == 900
    refused = next(answer for answer in answers if not answer.allowed)
    assert "asks for 300m of cpu, and " in refused.message
    assert cluster.guard.counters == {"guard_reserved": 3, "guard_conflict_resource": 17}


async def test_two_bindings_of_one_pod_at_once_reserve_once_on_one_shard(make_node: Any) -> None:
    cluster = WebhookCluster(1)
    await cluster.add_nodes(make_node("n1"), make_node("n2"))
    pod = cluster.pod("p")
    answers = await asyncio.gather(*(cluster.guard.review(review_of(pod, node)) for node in ("n1", "n2")))
    assert [answer.allowed for answer in answers] == [True, False]
    assert "room is reserved for pod default/p on node n1" in answers[1].message
    assert await cluster.reserved(pod) == 1


async def test_of_bindings_of_one_pod_at_once_on_several_shards_one_at_most_reserves(make_node: Any) -> None:
    """Each sees the others after it has prepared its own, and gives that back. So at no moment two count."""
    cluster, live = WebhookCluster(3), [0]

    def counted(step: Any) -> Any:
        async def call(*args: Any, **options: Any) -> Any:
            answer = await step(*args, **options)
            live.append(await cluster.reserved(pod, but=ReservationState.PREPARED))
            return answer

        return call

    cluster.ledger.commit = counted(cluster.ledger.commit)
    cluster.ledger.commit_prepared = counted(cluster.ledger.commit_prepared)
    names = [
        next(name for name in map("n{}".format, range(99)) if shard_of(name, 3) == shard)
        for shard in range(3)
    ]
    await cluster.add_nodes(*map(make_node, names))
    guards = [cluster.another_guard(f"guard-{number}") for number in range(2)]
    for number in range(5):
        pod = cluster.pod(f"p{number}")
        asked = [guards[turn % 2].review(review_of(pod, name)) for turn, name in enumerate(names)]
        allowed = sum(answer.allowed for answer in await asyncio.gather(*asked))
        assert await cluster.reserved(pod) == allowed <= 1
        answers = [await cluster.guard.review(review_of(pod, name)) for name in names]
        assert [answer.verdict for answer in answers].count("reserved_elsewhere") == 2
        assert await cluster.reserved(pod) == 1
    assert max(live) == 1


@pytest.mark.parametrize("again", [True, False], ids=["the same node", "another shard's node"])
async def test_what_a_resolver_that_died_prepared_is_resolved_by_the_next_question(
    again: bool, make_node: Any
) -> None:
    cluster = WebhookCluster(3)
    other = next(name for name in map("n{}".format, range(99)) if shard_of(name, 3) != shard_of("n1", 3))
    await cluster.add_nodes(make_node("n1"), make_node(other))
    pod, commit_prepared = cluster.pod("p"), cluster.ledger.commit_prepared

    async def dies(*_: Any, **__: Any) -> Any:
        raise LedgerUnavailable("the resolver died")

    cluster.ledger.commit_prepared = dies
    with pytest.raises(LedgerUnavailable):
        await cluster.guard.review(review_of(pod, "n1"))
    cluster.ledger.commit_prepared = commit_prepared
    guard = cluster.another_guard("next")
    answer = await guard.review(review_of(pod, "n1" if again else other))
    assert answer.verdict == ("standing" if again else "reserved_elsewhere")
    await cluster.pass_without_dispatcher(10)
    assert await cluster.reserved(pod) == again
    assert (await guard.review(review_of(pod, "n1" if again else other))).allowed


async def test_a_watched_pod_is_judged_by_one_question_to_a_ledger_of_one_shard(make_node: Any) -> None:
    cluster = WebhookCluster(1)
    cluster.pods.watched = True
    await cluster.add_nodes(make_node("n1"), make_node("n2"))
    assert (await cluster.guard.review(review_of(cluster.pod("first"), "n1"))).allowed

    async def lookup(*_: Any) -> Any:
        pytest.fail("it was looked up")

    cluster.ledger.lookup, looked_up = lookup, cluster.ledger.lookup
    pod = cluster.pod("p")
    assert (await cluster.guard.review(review_of(pod, "n1"))).verdict == "reserved"
    assert (await cluster.guard.review(review_of(pod, "n1"))).verdict == "standing"
    cluster.pods.found = 0
    cluster.ledger.lookup = looked_up
    assert (await cluster.guard.review(review_of(pod, "n2"))).verdict == "reserved_elsewhere"
    assert cluster.pods.found == 0


async def test_a_pod_that_holds_room_on_one_shard_gets_none_on_another(make_node: Any) -> None:
    cluster = WebhookCluster(3)
    names = [f"n{i}" for i in range(10)]
    here = names[0]
    there = next(name for name in names if shard_of(name, 3) != shard_of(here, 3))
    await cluster.add_nodes(make_node(here), make_node(there))
    pod = cluster.pod("p")
    for with_uid in (True, False):
        assert (await cluster.guard.review(review_of(pod, here, with_uid=with_uid))).allowed
        answer = await cluster.guard.review(review_of(pod, there, with_uid=with_uid))
        assert (answer.verdict, answer.code) == ("reserved_elsewhere", 409)
    assert await cluster.reserved(pod) == 1


async def test_a_reservation_is_the_pass_and_the_pod_is_not_even_read(
    cluster: WebhookCluster, make_node: Any
) -> None:
    await cluster.add_nodes(make_node("n1"))
    pod = cluster.pod("p")
    assert (await cluster.guard.review(review_of(pod, "n1"))).verdict == "reserved"
    asked = cluster.pods.found
    assert (await cluster.guard.review(review_of(pod, "n1"))).verdict == "standing"
    assert cluster.pods.found == asked


async def test_every_reservation_is_a_commit_of_its_own_so_that_each_ends_by_itself(
    cluster: WebhookCluster, make_node: Any
) -> None:
    await cluster.add_nodes(make_node("n1"))
    pods = [cluster.pod(f"p{i}") for i in range(5)]
    await asyncio.gather(*(cluster.guard.review(review_of(pod, "n1")) for pod in pods))
    records = (await cluster.ledger.state(shard_of("n1", cluster.ledger.shards))).reservations.records
    assert len(set(records["seq"].tolist())) == 5


async def test_a_dry_run_says_what_would_be_and_leaves_no_trace(
    cluster: WebhookCluster, make_node: Any
) -> None:
    await cluster.add_nodes(make_node("n1", cpu=1000))
    before = await cluster.ledger.seq(shard_of("n1", cluster.ledger.shards))
    small, large = cluster.pod("small"), cluster.pod("large", cpu="1001m")
    assert (await cluster.guard.review(review_of(small, "n1", dry_run=True))).verdict == "would_fit"
    assert (await cluster.guard.review(review_of(large, "n1", dry_run=True))).verdict == "conflict_resource"
    assert await cluster.reserved(small) == 0
    assert await cluster.ledger.seq(shard_of("n1", cluster.ledger.shards)) == before


async def test_a_host_port_that_is_taken_is_named(cluster: WebhookCluster, make_node: Any) -> None:
    await cluster.add_nodes(make_node("n1"))
    ports = [{"containerPort": 80, "hostPort": 8080}]
    first, second = (cluster.pod(name, ports=ports) for name in ("first", "second"))
    assert (await cluster.guard.review(review_of(first, "n1"))).allowed
    answer = await cluster.guard.review(review_of(second, "n1"))
    assert answer.verdict == "conflict_port"
    assert "its host port 8080 is taken there" in answer.message


async def test_a_cordon_is_the_scheduler_s_to_know(cluster: WebhookCluster, make_node: Any) -> None:
    await cluster.add_nodes(make_node("n1", unschedulable=True))
    assert (await cluster.guard.review(review_of(cluster.pod("p"), "n1"))).verdict == "reserved"


async def test_the_documentation_quotes_what_its_example_is_told(make_node: Any) -> None:
    cluster = WebhookCluster(1)
    await cluster.add_nodes(make_node("NODE", cpu=3850))
    example, _ = yaml.safe_load_all((ROOT / "examples" / "too-large.yaml").read_text())
    resources = example["spec"]["containers"][0]["resources"]
    pod = cluster.pod(example["metadata"]["name"], resources=resources)
    answer = await cluster.guard.review(review_of(pod, "NODE"))
    assert answer.message in " ".join((ROOT / "docs" / "kubernetes.md").read_text().split())


async def test_a_resource_that_no_node_offers_does_not_fit_anywhere(
    cluster: WebhookCluster, make_node: Any
) -> None:
    await cluster.add_nodes(make_node("n1"))
    resources = {"requests": {"example.com/fpga": "1"}, "limits": {"example.com/fpga": "1"}}
    answer = await cluster.guard.review(review_of(cluster.pod("p", resources=resources), "n1"))
    assert answer.message.endswith("asks for 1 of example.com/fpga, and none is free")
    assert "example.com/fpga" not in await cluster.ledger.schema()


async def test_a_pod_that_cannot_be_counted_is_denied_with_the_field(
    cluster: WebhookCluster, make_node: Any
) -> None:
    await cluster.add_nodes(make_node("n1"))
    answer = await cluster.guard.review(review_of(cluster.pod("p", cpu="9007199254741000"), "n1"))
    assert answer.verdict == "unreadable"
    assert "pod.spec.containers[0].resources.requests.cpu" in answer.message


async def test_a_node_that_is_gone_is_as_unknown_as_one_that_never_was(
    cluster: WebhookCluster, make_node: Any
) -> None:
    await cluster.add_nodes(make_node("n1"))
    pod = cluster.pod("p")
    assert (await cluster.guard.review(review_of(pod, "never"))).verdict == "unknown_node"
    assert (await cluster.guard.review(review_of(cluster.pod("first"), "n1"))).allowed
    await cluster.ledger.remove_nodes(shard_of("n1", cluster.ledger.shards), ["n1"])
    assert (await cluster.guard.review(review_of(pod, "n1"))).verdict == "unknown_node"


async def test_an_exempt_namespace_is_allowed_whatever_is_the_matter(cluster: WebhookCluster) -> None:
    cluster.problem = "the ledger is away"
    assert (
        await cluster.guard.review(review_of(cluster.pod("p", namespace="kube-system"), "never"))
    ).verdict == "exempt"


async def test_while_the_ledger_is_away_there_is_no_answer(cluster: WebhookCluster, make_node: Any) -> None:
    await cluster.add_nodes(make_node("n1"))
    cluster.problem = "the ledger is away"
    with pytest.raises(LedgerUnavailable, match="the ledger is away"):
        await cluster.guard.review(review_of(cluster.pod("p"), "n1"))


async def test_a_guard_whose_first_look_at_the_ledger_failed_answers_the_next_review(
    cluster: WebhookCluster, make_node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.add_nodes(make_node("n1"))
    schema, lost = cluster.ledger.schema, iter([LedgerUnavailable("the answer was lost")])

    async def answer(*names: Any, **options: Any) -> list[str]:
        for error in lost:
            raise error
        return await schema(*names, **options)

    monkeypatch.setattr(cluster.ledger, "schema", answer)
    with pytest.raises(LedgerUnavailable, match="the answer was lost"):
        await cluster.guard.review(review_of(cluster.pod("p"), "n1"))
    assert (await cluster.guard.review(review_of(cluster.pod("p"), "n1"))).verdict == "reserved"


async def test_a_guard_that_was_fenced_registers_again_and_answers(
    cluster: WebhookCluster, make_node: Any
) -> None:
    await cluster.add_nodes(make_node("n1"))
    assert (await cluster.guard.review(review_of(cluster.pod("first"), "n1"))).allowed
    await cluster.ledger.grant("guard")
    assert (await cluster.guard.review(review_of(cluster.pod("second"), "n1"))).verdict == "reserved"


async def test_two_guards_do_not_disturb_each_other(cluster: WebhookCluster, make_node: Any) -> None:
    await cluster.add_nodes(make_node("n1", cpu=1000))
    other = cluster.another_guard("other")
    pods = [cluster.pod(f"p{i}", cpu="300m") for i in range(10)]
    asked = [
        guard.review(review_of(pod, "n1"))
        for guard, pod in zip([cluster.guard, other] * 5, pods, strict=True)
    ]
    assert sum(answer.allowed for answer in await asyncio.gather(*asked)) == 3


async def test_what_stands_on_a_node_and_is_not_in_the_ledger_is_counted_before_the_node_is_judged(
    cluster: WebhookCluster, make_node: Any
) -> None:
    """Or else a ledger that is being filled would seem to have room everywhere."""
    await cluster.add_nodes(make_node("n1", cpu=1000))
    standing = [cluster.pod(name, cpu="600m") for name in ("one", "two")]
    for pod in standing:
        pod["spec"]["nodeName"] = "n1"
    answer = await cluster.guard.review(review_of(cluster.pod("p"), "n1"))
    assert not answer.allowed
    assert "none is free (200m more is requested there than it has)" in answer.message
    assert [await cluster.reserved(pod) for pod in standing] == [1, 1]
    assert cluster.guard.counters["guard_counted_existing"] == 2


async def test_a_pod_that_cannot_be_counted_leaves_its_node_without_an_answer(
    cluster: WebhookCluster, make_node: Any
) -> None:
    await cluster.add_nodes(make_node("n1", cpu=1000))
    cluster.pod("odd", cpu="many")["spec"]["nodeName"] = "n1"
    with pytest.raises(LedgerUnavailable, match="pod default/odd on node n1 cannot be counted"):
        await cluster.guard.review(review_of(cluster.pod("p"), "n1"))


async def test_a_counted_pod_that_goes_without_a_dispatcher_gives_its_room_back(
    cluster: WebhookCluster, make_node: Any
) -> None:
    await cluster.add_nodes(make_node("n1", cpu=1000))
    standing = cluster.pod("standing", cpu="900m")
    standing["spec"]["nodeName"] = "n1"
    assert not (await cluster.guard.review(review_of(cluster.pod("p", cpu="600m"), "n1"))).allowed
    cluster.pods.remove("standing")
    await cluster.pass_without_dispatcher(120, cluster.guard)
    assert await cluster.reserved(standing) == 0


async def test_a_binding_without_an_answer_may_have_passed_so_its_node_is_compared_again(
    cluster: WebhookCluster, make_node: Any
) -> None:
    """failurePolicy Ignore."""
    await cluster.add_nodes(make_node("n1", cpu=1000))
    assert (await cluster.guard.review(review_of(cluster.pod("early"), "n1"))).allowed
    unseen = cluster.pod("unseen", cpu="800m")
    cluster.problem = "the ledger is away"
    with pytest.raises(LedgerUnavailable):
        await cluster.guard.review(review_of(unseen, "n1"))
    unseen["spec"]["nodeName"] = "n1"
    cluster.problem = ""
    assert not (await cluster.guard.review(review_of(cluster.pod("p", cpu="600m"), "n1"))).allowed
    assert await cluster.reserved(unseen) == 1


async def test_a_denial_that_the_api_server_did_not_wait_for_may_have_passed_so_its_node_is_compared_again(
    cluster: WebhookCluster, make_node: Any
) -> None:
    """failurePolicy Ignore, on a machine that does much else."""
    await cluster.add_nodes(make_node("n1", cpu=1000))
    assert (await cluster.guard.review(review_of(cluster.pod("early"), "n1"))).allowed
    unseen, cluster.decision_seconds = cluster.pod("unseen", cpu="950m"), 1.2
    assert not (await cluster.guard.review(review_of(unseen, "n1"))).allowed
    cluster.decision_seconds = 0.0
    unseen["spec"]["nodeName"] = "n1"
    assert not (await cluster.guard.review(review_of(cluster.pod("p", cpu="600m"), "n1"))).allowed
    assert await cluster.reserved(unseen) == 1


async def test_a_node_whose_index_is_another_nodes_by_now_is_looked_for_again(
    cluster: WebhookCluster, make_node: Any
) -> None:
    shards = cluster.ledger.shards
    old, new = [name for name in map("n{}".format, range(99)) if shard_of(name, shards) == 0][:2]
    await cluster.add_nodes(make_node(old, cpu=1000))
    assert (await cluster.guard.review(review_of(cluster.pod("first"), old))).allowed
    await cluster.ledger.remove_nodes(0, [old])
    await cluster.add_nodes(make_node(new, cpu=1000))
    pod = cluster.pod("p")
    assert (await cluster.guard.review(review_of(pod, old))).verdict == "unknown_node"
    assert await cluster.reserved(pod) == 0
    assert (await cluster.guard.review(review_of(pod, new))).verdict == "reserved"
    assert not (await cluster.guard.review(review_of(pod, old))).allowed, (
        "it is reserved on the node with that index"
    )
    await cluster.add_nodes(make_node(old, cpu=1000))
    another = cluster.pod("another")
    assert (await cluster.guard.review(review_of(another, old))).verdict == "reserved"
    assert (await cluster.guard.review(review_of(another, old))).verdict == "standing"


async def test_what_is_bound_keeps_its_room_without_a_dispatcher(
    cluster: WebhookCluster, make_node: Any
) -> None:
    await cluster.add_nodes(make_node("n1", cpu=1000))
    first = await cluster.bind("first", "n1")
    await cluster.pass_without_dispatcher(120, cluster.guard)
    assert await cluster.reserved(first) == 1
    second = cluster.pod("second", cpu="600m")
    assert (await cluster.guard.review(review_of(second, "n1"))).verdict == "conflict_resource"
    assert len(cluster.guard.under_way) == 0, "it is confirmed, and forgotten"
    assert cluster.guard.counters["lease_confirmed"] == 1


async def _confirm(cluster: WebhookCluster, pod: Any, node: str) -> None:
    """As a dispatcher does when it sees the pod on its node."""
    shard = shard_of(node, cluster.ledger.shards)
    await cluster.ledger.confirm(shard, (await cluster.ledger.lookup(shard, cluster.uids(pod)))["seq"])


async def test_nobody_asks_the_api_server_for_what_a_dispatcher_confirms_in_time(
    cluster: WebhookCluster, make_node: Any
) -> None:
    """Otherwise each binding costs it a request, all of some seconds at once."""
    await cluster.add_nodes(make_node("n1", cpu=1000))
    pod = await cluster.bind("p", "n1")
    asked = cluster.pods.found
    cluster.now += 7.4  # a round of leases is due before the dispatcher is heard
    await cluster.guard.under_way.settle()
    await cluster.guard.under_way.renew()
    await _confirm(cluster, pod, "n1")
    for _ in range(3):
        cluster.now += 7.5
        await cluster.guard.under_way.settle()
        await cluster.guard.under_way.renew()
    assert cluster.pods.found == asked
    assert len(cluster.guard.under_way) == 0


async def test_what_is_confirmed_while_others_are_asked_for_is_not_asked_for(
    cluster: WebhookCluster, make_node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.add_nodes(make_node("n1", cpu=100_000))
    pods = [await cluster.bind(f"p{number}", "n1") for number in range(25)]
    answered, find, asked = asyncio.Event(), cluster.pods.find, []

    async def slow(namespace: str, name: str, uid: bytes) -> Any:
        asked.append(name)
        await answered.wait()
        return await find(namespace, name, uid)

    monkeypatch.setattr(cluster.pods, "find", slow)
    cluster.now += 20
    settling = asyncio.ensure_future(cluster.guard.under_way.settle())
    await asyncio.sleep(0)
    for pod in pods:
        await _confirm(cluster, pod, "n1")
    await cluster.guard.under_way.renew()
    answered.set()
    await settling
    assert len(asked) < len(pods)


async def test_a_lease_goes_on_while_the_api_server_takes_longer_than_that_to_answer(
    cluster: WebhookCluster, make_node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.add_nodes(make_node("n1", cpu=1000))
    pod = await cluster.bind("p", "n1")
    answered, find = asyncio.Event(), cluster.pods.find

    async def slow(*args: Any) -> Any:
        await answered.wait()
        return await find(*args)

    monkeypatch.setattr(cluster.pods, "find", slow)
    cluster.now += 16  # no dispatcher has confirmed it by now
    settling = asyncio.ensure_future(cluster.guard.under_way.settle())
    for _ in range(40):
        cluster.now += 2
        await cluster.guard.under_way.renew()
        for shard in range(cluster.ledger.shards):
            await cluster.ledger.reap(shard)
    assert await cluster.reserved(pod) == 1
    assert not settling.done()
    answered.set()
    await settling
    assert cluster.guard.counters["lease_confirmed"] == 1


async def test_a_binding_that_comes_to_nothing_gives_its_room_back(
    cluster: WebhookCluster, make_node: Any
) -> None:
    await cluster.add_nodes(make_node("n1", cpu=1000))
    pod = cluster.pod("p")
    assert (await cluster.guard.review(review_of(pod, "n1"))).allowed
    await cluster.pass_without_dispatcher(60, cluster.guard)
    assert await cluster.reserved(pod) == 1, "the API server may still write it"
    await cluster.pass_without_dispatcher(60, cluster.guard)
    assert await cluster.reserved(pod) == 0
    assert len(cluster.guard.under_way) == 0


async def test_room_of_an_allowed_binding_is_kept_although_its_resolver_dies_at_once(
    cluster: WebhookCluster, make_node: Any
) -> None:
    """The API server may take a minute to write the binding, which is longer than a lease."""
    await cluster.add_nodes(make_node("n1", cpu=1000))
    pod, other = cluster.pod("p", cpu="600m"), cluster.pod("other", cpu="600m")
    assert (await cluster.guard.review(review_of(pod, "n1"))).allowed
    another = cluster.another_guard("guard-2")
    await cluster.pass_without_dispatcher(80, another)
    assert (await another.review(review_of(other, "n1"))).verdict == "conflict_resource"
    await cluster.pass_without_dispatcher(20, another)
    assert (await another.review(review_of(other, "n1"))).allowed, "the binding never came"


async def test_a_binding_that_is_allowed_again_lasts_from_then_on(
    cluster: WebhookCluster, make_node: Any
) -> None:
    """Both resolvers die, each right after its answer."""
    await cluster.add_nodes(make_node("n1", cpu=1000))
    pod = cluster.pod("p", cpu="600m")
    assert (await cluster.guard.review(review_of(pod, "n1"))).verdict == "reserved"
    await cluster.pass_without_dispatcher(80)
    assert (await cluster.another_guard("guard-2").review(review_of(pod, "n1"))).verdict == "standing"
    await cluster.pass_without_dispatcher(80)
    assert await cluster.reserved(pod) == 1


async def test_room_that_is_reserved_lasts_without_a_further_call_of_the_ledger(
    cluster: WebhookCluster, make_node: Any
) -> None:
    await cluster.add_nodes(make_node("n1", cpu=1000))
    pod, renew, calls = cluster.pod("p"), cluster.ledger.renew, []

    async def counted(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return await renew(*args, **options)

    cluster.ledger.renew = counted
    assert (await cluster.guard.review(review_of(pod, "n1"))).verdict == "reserved"
    assert not calls
    await cluster.pass_without_dispatcher(80)
    assert await cluster.reserved(pod) == 1
    await cluster.pass_without_dispatcher(20)
    assert await cluster.reserved(pod) == 0


async def test_a_binding_whose_room_went_before_it_was_allowed_again_reserves_again(
    cluster: WebhookCluster, make_node: Any
) -> None:
    await cluster.add_nodes(make_node("n1", cpu=1000))
    pod, shard = cluster.pod("p"), shard_of("n1", cluster.ledger.shards)
    assert (await cluster.guard.review(review_of(pod, "n1"))).verdict == "reserved"
    renew, renewed = cluster.ledger.renew, []

    async def renew_too_late(*args: Any, **options: Any) -> Any:
        if not renewed:
            await cluster.ledger.release(shard, cluster.uids(pod))
        renewed.append(await renew(*args, **options))
        return renewed[-1]

    cluster.ledger.renew = renew_too_late
    assert (await cluster.guard.review(review_of(pod, "n1"))).verdict == "reserved"
    assert await cluster.reserved(pod) == 1
    assert [held.tolist() for held in renewed] == [[False]]


async def test_a_guard_that_is_fenced_before_it_allows_a_binding_again_still_makes_the_room_last(
    cluster: WebhookCluster, make_node: Any
) -> None:
    await cluster.add_nodes(make_node("n1", cpu=1000))
    pod, renew, answers = cluster.pod("p"), cluster.ledger.renew, []
    assert (await cluster.guard.review(review_of(pod, "n1"))).allowed
    await cluster.pass_without_dispatcher(80)

    async def fenced_first(*args: Any, **options: Any) -> Any:
        if not answers:
            await cluster.ledger.grant("guard")
        answers.append(await renew(*args, **options))
        return answers[-1]

    cluster.ledger.renew = fenced_first
    assert (await cluster.guard.review(review_of(pod, "n1"))).allowed
    await cluster.pass_without_dispatcher(80)
    assert await cluster.reserved(pod) == 1


@pytest.mark.parametrize("what", ["deleted", "terminating", "bound elsewhere", "another of its name"])
async def test_room_of_a_binding_that_the_api_server_would_refuse_is_given_back_at_once(
    cluster: WebhookCluster, make_node: Any, what: str
) -> None:
    await cluster.add_nodes(make_node("n1", cpu=1000))
    pod = cluster.pod("p")
    assert (await cluster.guard.review(review_of(pod, "n1"))).allowed
    if what == "deleted":
        cluster.pods.remove("p")
    elif what == "terminating":
        pod["metadata"]["deletionTimestamp"] = "2026-11-28T12:00:00Z"
    elif what == "bound elsewhere":
        pod["spec"]["nodeName"] = "n2"
    else:
        cluster.pod("p")
    await cluster.pass_without_dispatcher(20, cluster.guard)
    assert await cluster.reserved(pod) == 0
    assert cluster.guard.counters["lease_given_back"] == 1


async def test_a_binding_without_a_uid_may_still_bind_the_next_pod_of_that_name(
    cluster: WebhookCluster, make_node: Any
) -> None:
    await cluster.add_nodes(make_node("n1", cpu=1000))
    pod = cluster.pod("p")
    assert (await cluster.guard.review(review_of(pod, "n1", with_uid=False))).allowed
    cluster.pods.remove("p")
    await cluster.pass_without_dispatcher(80, cluster.guard)
    assert await cluster.reserved(pod) == 1
    await cluster.pass_without_dispatcher(20, cluster.guard)
    assert await cluster.reserved(pod) == 0


async def test_a_node_is_compared_with_the_api_server_again_after_leases_ended(
    cluster: WebhookCluster, make_node: Any
) -> None:
    """The resolver that allowed the binding died, and no dispatcher has confirmed it."""
    await cluster.add_nodes(make_node("n1", cpu=1000))
    another = cluster.another_guard("guard-2")
    assert (await another.review(review_of(cluster.pod("early"), "n1"))).allowed, (
        "it has compared the node once"
    )
    await another.under_way.renew()
    await another.under_way.settle()
    first = await cluster.bind("first", "n1")
    await cluster.pass_without_dispatcher(100, another)
    second = cluster.pod("second", cpu="600m")
    answer = await another.review(review_of(second, "n1"))
    assert not answer.allowed
    assert answer.verdict == "conflict_resource"
    await cluster.pass_without_dispatcher(120, another)
    assert await cluster.reserved(first) == 1, "confirmed"


async def test_a_resolver_adopts_the_lease_of_one_that_died(cluster: WebhookCluster, make_node: Any) -> None:
    await cluster.add_nodes(make_node("n1", cpu=1000))
    pod = cluster.pod("p", cpu="600m")
    assert (await cluster.guard.review(review_of(pod, "n1"))).verdict == "reserved"
    another = cluster.another_guard("guard-2")
    await another.review(review_of(cluster.pod("other"), "n1"))
    assert (await another.review(review_of(pod, "n1"))).verdict == "standing"
    pod["spec"]["nodeName"] = "n1"
    await cluster.pass_without_dispatcher(60, another)
    assert await cluster.reserved(pod) == 1


async def test_while_nobody_can_tell_whether_a_pod_is_bound_its_lease_is_kept(
    cluster: WebhookCluster, make_node: Any
) -> None:
    await cluster.add_nodes(make_node("n1", cpu=1000))
    pod = await cluster.bind("first", "n1")

    async def away(*_: Any) -> Any:
        raise TransportError("the API server is away")

    cluster.pods.find = away
    await cluster.pass_without_dispatcher(300, cluster.guard)
    assert await cluster.reserved(pod) == 1
