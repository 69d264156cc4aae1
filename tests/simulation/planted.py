"""Faults that are put into the product on purpose, to see that simulations find them.

As a program it runs seeds, or a written plan with other seeds, with one of them, until a promise is broken:
`PYTHONPATH=.:tests python -m simulation.planted NAME [PLAN | kubernetes | moves | short] SEED...`. Exit code
1: one was broken.

A fault is a few edits of the product's own text: of a part of a ledger script, or of a function. An edit
names what it replaces, and that has to be there exactly once: a fault that no longer fits the code fails its
test."""

import __future__

import importlib
import inspect
import json
import sys
import textwrap
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType

from resolver.ledger import scripts
from tools.simulation.cluster_plan import draw_kubernetes
from tools.simulation.loop import discarding
from tools.simulation.plan import Plan
from tools.simulation.plan_drawing import draw, draw_moves, draw_short
from tools.simulation.redis_backend import DrivenRedis
from tools.simulation.run import run

KUBERNETES, MOVES, SHORT = "kubernetes", "moves", "short"


@dataclass(frozen=True)
class ScriptEdit:
    """Of a part of the ledger's scripts, in every script that has it."""

    part: str
    old: str
    new: str


@dataclass(frozen=True)
class CodeEdit:
    """Of a function or method, `module:qualified.name`. Its text begins without indentation."""

    where: str
    old: str
    new: str


@dataclass(frozen=True)
class PlantedFault:
    """`seeds`: some that were seen to find it. A change of the product's timing may make it others."""

    text: str
    edits: tuple[ScriptEdit | CodeEdit, ...]
    seeds: tuple[int, ...] = ()
    plans: str = ""  # of which the seeds are: KUBERNETES, MOVES, or the usual ones
    short_seeds: tuple[int, ...] = ()  # whose short plans find it


@contextmanager
def planted(fault: PlantedFault) -> Generator[None, None, None]:
    """Within the block the product has this fault."""
    with ExitStack() as stack:
        script_edits = [edit for edit in fault.edits if isinstance(edit, ScriptEdit)]
        if script_edits:
            stack.enter_context(_scripts_edited(script_edits))
        code_edits = [edit for edit in fault.edits if isinstance(edit, CodeEdit)]
        for where in dict.fromkeys(edit.where for edit in code_edits):
            stack.enter_context(_code_edited(where, [e for e in code_edits if e.where == where]))
        yield


def _replaced(text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        raise AssertionError(f"{old!r} is there {text.count(old)} times, and not once")
    return text.replace(old, new)


@contextmanager
def _scripts_edited(edits: list[ScriptEdit]) -> Generator[None, None, None]:
    original, parts = scripts.source, scripts._PARTS
    for edit in edits:
        if not any(edit.part in of_script for of_script in parts.values()):
            raise AssertionError(f"no script has the part {edit.part}")

    @cache
    def source(script: str) -> str:
        text = original(script)
        for edit in edits:
            if edit.part in parts[script]:
                text = _replaced(text, edit.old, edit.new)
        return text

    scripts.source = source
    scripts._digest.cache_clear()
    try:
        yield
    finally:
        scripts.source = original
        scripts._digest.cache_clear()


@contextmanager
def _code_edited(where: str, edits: list[CodeEdit]) -> Generator[None, None, None]:
    module_name, _, path = where.partition(":")
    *owners, name = path.split(".")
    owner = importlib.import_module(module_name)
    for part in owners:
        owner = getattr(owner, part)
    original = owner.__dict__[name]
    text = textwrap.dedent(inspect.getsource(original))
    for edit in edits:
        text = _replaced(text, edit.old, edit.new)
    made: dict[str, object] = {}
    flags = __future__.annotations.compiler_flag
    code = compile(text, f"{where} with a fault", "exec", flags=flags, dont_inherit=True)
    exec(code, original.__globals__, made)
    # A module that has imported a function by its name calls it by that name.
    owners_of_it = [owner] if owners else _that_have(name, original)
    for each in owners_of_it:
        setattr(each, name, made[name])
    try:
        yield
    finally:
        for each in owners_of_it:
            setattr(each, name, original)


def _that_have(name: str, function: object) -> list[ModuleType]:
    return [module for module in [*sys.modules.values()] if vars(module).get(name) is function]


FAULTS = {
    "epoch unchecked": PlantedFault(
        "the ledger commits for workers that are fenced",
        (
            ScriptEdit(
                "prelude",
                "if (epoch or stored) ~= args.epoch then",
                "if false then",
            ),
        ),
        seeds=(5,),
        short_seeds=(0,),
    ),
    "acknowledged before durable": PlantedFault(
        "a submission is acknowledged while it is written, whatever comes of that",
        (
            CodeEdit(
                "dispatcher.api.admission:Admission._write",
                "            submission.order = await self._runtime.journal.record(record)\n",
                "            async def write():\n"
                "                try:\n"
                "                    submission.order = await self._runtime.journal.record(record)\n"
                "                except Exception:\n"
                "                    pass\n"
                "            asyncio.ensure_future(write())\n",
            ),
        ),
        seeds=(7, 8),
        short_seeds=(2,),
    ),
    "confirmed without a lease": PlantedFault(
        "a pod counts as confirmed, although its lease was over before",
        (
            CodeEdit(
                "dispatcher.runtime:Runtime._confirm", "if confirmed < sum(", "if False and confirmed < sum("
            ),
        ),
        seeds=(112, 199),
        short_seeds=(108,),
    ),
    "feed entry skipped": PlantedFault(
        "a follower that is two entries behind gets the second alone",
        (
            CodeEdit(
                "resolver.api.feed:ShardFeed._after",
                "        return list(islice(self._ring, position + 1 - self._ring[0].seq, None))\n",
                "        found = list(islice(self._ring, position + 1 - self._ring[0].seq, None))\n"
                "        if len(found) > 1:\n"
                "            second = pb.FeedMessage()\n"
                "            second.CopyFrom(found[1])\n"
                "            second.previous_seq = position\n"
                "            found[:2] = [second]\n"
                "        return found\n",
            ),
        ),
        seeds=(16,),
        short_seeds=(150,),
    ),
    "gang on one shard": PlantedFault(
        "the second phase of a commit on several shards reaches the first shard only",
        (
            CodeEdit(
                "resolver.api.two_phase:_commit_prepared",
                "for part in _ascending(parts):",
                "for part in _ascending(parts)[:1]:",
            ),
        ),
        seeds=(0,),
        short_seeds=(33,),
    ),
    "retry that forgets": PlantedFault(
        "a release that fails is not repeated",
        (
            CodeEdit(
                "dispatcher.runtime:Runtime._release",
                "    await self.until_answered(lambda: self.ledger.release(uids, nodes, as_of))\n",
                "    try:\n"
                "        await self.ledger.release(uids, nodes, as_of)\n"
                "    except (LedgerUnavailable, TransportError):\n"
                "        pass\n",
            ),
        ),
        seeds=(25, 27),
        short_seeds=(5,),
    ),
    "release by the wrong sequence": PlantedFault(
        "a release also takes what was reserved after it was decided",
        (
            ScriptEdit(
                "release_pods",
                "if meant and not (as_of and unpack_values('<I8', record, 9) > as_of) then",
                "if meant then",
            ),
        ),
        seeds=(85,),
        short_seeds=(9,),
    ),
    "assumed twice": PlantedFault(
        "a worker's cache counts a pod that it assumes twice",
        (
            CodeEdit(
                "scheduler_worker.core.cache.node_info:NodeInfoCache.assume",
                "        self.assumed[:, node] += request\n",
                "        self.assumed[:, node] += 2 * request\n",
            ),
            CodeEdit(
                "scheduler_worker.core.cache.node_info:NodeInfoCache.assume",
                "            np.add.at(self.assumed[row], nodes, request[row])\n",
                "            np.add.at(self.assumed[row], nodes, 2 * request[row])\n",
            ),
        ),
        seeds=(2, 7),
        short_seeds=(3,),
    ),
    "lost wake-up": PlantedFault(
        "pods whose backoff is not over are forgotten when a change wakes them",
        (
            CodeEdit(
                "dispatcher.core.queue.waiting:UnschedulablePods.wake",
                "later=[(p.not_before, p.rows) for p in entries if p.not_before > now]",
                "later=[]",
            ),
        ),
        seeds=(90, 101),
        short_seeds=(28,),
    ),
    "takeover without fencing": PlantedFault(
        "a new dispatcher does not fence the workers of the term before",
        (
            CodeEdit(
                "dispatcher.recovery:recover",
                "    await _fence(runtime, sorted(journal.workers | writers))\n",
                "",
            ),
        ),
        seeds=(180,),
        short_seeds=(907,),
    ),
    "victim evicted twice": PlantedFault(
        "the room of a victim is returned to its node twice",
        (
            ScriptEdit(
                "evicting",
                "    give_amounts(account, records[i])\n",
                "    give_amounts(account, records[i])\n    give_amounts(account, records[i])\n",
            ),
        ),
        seeds=(2, 19),
        short_seeds=(19,),
    ),
    "stale webhook answer": PlantedFault(
        "nobody looks after the lease of a binding that the webhook allowed, and the API server binds late",
        (
            CodeEdit(
                "resolver.kubernetes.webhook.binding_webhook:BindingWebhook._try_to_reserve",
                "lease_ms=BINDING_LEASE_MS",
                "lease_ms=0",
            ),
            CodeEdit(
                "resolver.kubernetes.webhook.binding_webhook:BindingWebhook._answer",
                "self.under_way.reserved(review, shard, uid, decision.seq, ledger_epoch)",
                "pass",
            ),
            CodeEdit(
                "resolver.kubernetes.webhook.binding_webhook:BindingWebhook._begin",
                "if await self.under_way.begin(review, shard, uid, seq):",
                "if True:",
            ),
        ),
        seeds=(0,),
        plans=KUBERNETES,
    ),
    "moved and both places kept": PlantedFault(
        "a move in one step leaves the room of the source taken",
        (
            ScriptEdit(
                "move",
                "      leave(uids[position], record)\n      if any_evictions",
                "      if any_evictions",
            ),
        ),
        seeds=(2,),
        plans=MOVES,
    ),
    "source given up without a target": PlantedFault(
        "the step that ends a move releases the source and the target",
        (
            ScriptEdit(
                "confirm_moves",
                "  write_fields(RESERVATIONS, changes)\n  for from = 1, #former, STEP do\n",
                "  for from = 1, #former, STEP do\n",
            ),
        ),
        seeds=(0,),
        plans=MOVES,
    ),
}

_DEVICES_OF_PODS_THAT_ARE_GONE = PlantedFault(
    "a claim gets devices for a pod that is gone, which are given to another pod",
    (
        CodeEdit(
            "resolver.kubernetes.existing_pods:ExistingPodReservations.release",
            "if self._binder is not None:",
            "if False:",
        ),
        CodeEdit(
            "resolver.kubernetes.device_binder:DeviceBinder._bind_claim",
            "pod = await self._pod(request)",
            "pod = None",
        ),
    ),
)

# Cures undone, and faults for which a plan was written: each is found by the plan of that name in
# tests/simulation/plans.
UNDONE = {
    "confirmations-behind-a-lost-answer": PlantedFault(
        "confirmations wait ten seconds for the lost answer to an earlier one, and their leases end",
        (CodeEdit("hoss.client.resolver:ResolverClient.confirm", ", _LEASED_CALL_SECONDS", ""),),
    ),
    "move-whose-look-up-is-not-answered": PlantedFault(
        "a dispatcher waits ten seconds for the answer that says where moved pods are",
        tuple(
            CodeEdit(f"hoss.client.resolver:ResolverClient.{call}", ", _AWAITED_CALL_SECONDS", "")
            for call in ("lookup", "move")
        ),
    ),
    "answer-about-a-former-place": PlantedFault(
        "the ledger's answer is taken for one about the place that the pod has by now",
        (
            CodeEdit(
                "dispatcher.runtime:Runtime._verify_part",
                "same = pods.changes[rows] == asked",
                "same = np.ones(len(rows), np.bool_)",
            ),
            # Evictions again and again, see TaintEviction.check, made that likely.
            CodeEdit(
                "dispatcher.core.bound.taint_eviction:TaintEviction.check",
                "out.append(Verify(staying, pods.uid[staying]))",
                "out += self._evict(staying, self.nodes.removal_reason(index))",
            ),
        ),
        seeds=(26,),
    ),
    "binding-of-a-lost-leader-that-comes-late": PlantedFault(
        "who was told of a pod's node is told of another one, where the API server has it, with nothing"
        " between",
        (
            CodeEdit(
                "dispatcher.core.bound.settlement:Settlement.end_placements",
                "if len(rows):",
                "if False:",
            ),
        ),
    ),
    "node-added-before-a-rebuild": PlantedFault(
        "nodes are written into whatever ledger Redis has, also into one that is about to be rebuilt",
        (
            CodeEdit(
                "dispatcher.kubernetes.cluster_mirror:ClusterMirror._ledger_epoch",
                "return self._runtime.ledger.known().ledger_epoch",
                'return ""',
            ),
        ),
    ),
    "node-acknowledged-before-the-feed-showed-it": PlantedFault(
        "a ledger is rebuilt with the nodes that its feed had shown, whatever else was acknowledged",
        (
            CodeEdit(
                "dispatcher.ledger.nodes:ClusterNodes.upserted",
                "self._written[node.name] = index, _Node(node.name, spec)",
                "_Node(node.name, spec)",
            ),
        ),
    ),
    "port-of-a-pod-that-nobody-knows-any-more": PlantedFault(
        "the feed tells which room pods leave, and not which pods left",
        (
            CodeEdit(
                "dispatcher.ledger.nodes:ClusterNodes._changes",
                "deleted_pods=left)",
                "deleted_pods=frozenset())",
            ),
        ),
    ),
    "epochs-of-a-ledger-made-anew": PlantedFault(
        "a new ledger in an emptied Redis counts worker epochs from 1",
        (ScriptEdit("next_epoch", "or BY_TIME)", "or 0)"),),
    ),
    "eviction-that-is-told-again": PlantedFault(
        "a new term believes evictions that are older than the reservations which it began with",
        (
            CodeEdit(
                "dispatcher.workers.preemption:PreemptionAnswers.read",
                " and message.seq > self._restored.get(message.shard, 0)",
                "",
            ),
        ),
    ),
    "job-submitted-again-amid-a-move": PlantedFault(
        "a job whose deleted pods are being moved is accepted again before the move has ended",
        (CodeEdit("dispatcher.api.admission:Admission._write", "await self._until_moved(prefixes)", "pass"),),
    ),
    "port-freed-before-a-view-showed-it": PlantedFault(
        "a pod that was refused by a view without a release is not woken when the feed shows the release",
        (
            CodeEdit(
                "dispatcher.ledger.nodes:ClusterNodes._changes",
                "deleted_pods=left)",
                "deleted_pods=frozenset())",
            ),
        ),
        seeds=(25,),
    ),
    "room-that-became-free-on-a-closed-node": PlantedFault(
        "who waits for room is not woken when a node opens, though room became free there while it was"
        " closed",
        (
            CodeEdit(
                "dispatcher.ledger.nodes:ClusterNodes._changes",
                "node.aspects & _OF_ROOM",
                "node.aspects & (Aspect.ADDED | Aspect.ALLOCATABLE)",
            ),
        ),
    ),
    "release-that-comes-late": FAULTS["release by the wrong sequence"],
    "index-of-a-removed-node": PlantedFault(
        "a watch does not name an index again that another node has now",
        (
            CodeEdit(
                "dispatcher.api.watch:Watch._message",
                "name != self._named.get(index)",
                "index not in self._named",
            ),
        ),
    ),
    "clock-that-goes-back-keeps-the-lease": PlantedFault(
        "only the clock of Redis says when the lease of a dead leader is over",
        (
            CodeEdit(
                "dispatcher.leader.lease:RedisLease.acquire",
                "is_over = asked_at > self._unchanged_since + _OVER_AFTER * self._holder_seconds",
                "is_over = False",
            ),
        ),
    ),
    "standby-that-still-serves": PlantedFault(
        "who watches health hears of no change after another watcher has left",
        (
            CodeEdit(
                "hoss.serving:HealthService.Watch",
                "                await changed.wait()\n",
                "                try:\n"
                "                    await changed.wait()\n"
                "                except asyncio.CancelledError:\n"
                "                    self._changed = asyncio.Event()\n"
                "                    raise\n",
            ),
        ),
    ),
    "pods-told-bound-and-merely-prepared": PlantedFault(
        "a rule about pods of another shard's part leaves these prepared, and nobody commits them",
        (
            CodeEdit("resolver.ledger.packing:slot_constraints", " if pods[slot] else ()", ""),
            CodeEdit(
                "resolver.api.two_phase:decide_alone",
                "(decision.queries or decision.prepared)",
                "decision.queries",
            ),
        ),
    ),
    "two-bindings-of-one-pod-on-two-shards": PlantedFault(
        "a binding is reserved although another binding of the pod is, on another shard",
        (CodeEdit("resolver.api.two_phase:decide_alone", "proposal.exclusive and", "False and"),),
    ),
    "devices-of-a-pod-deleted-while-it-is-bound": _DEVICES_OF_PODS_THAT_ARE_GONE,
    "devices-written-after-their-pod-was-evicted": _DEVICES_OF_PODS_THAT_ARE_GONE,
    "pods-on-a-node-that-went-between-two-terms": PlantedFault(
        "a new leader removes a node that is gone with the reservations of pods that are on it",
        (CodeEdit("dispatcher.core.kubernetes.mirror:NodeMirror._occupied", "in bound}", "in ()}"),),
    ),
    "name-of-a-pod-that-went-before-a-rebuild": PlantedFault(
        "before a rebuild pods that are gone keep their names, and pods that have them now are refused",
        (
            CodeEdit(
                "dispatcher.kubernetes.cluster_mirror:ClusterMirror._untold_on_nodes",
                "self._end(rows[rows != NONE_U32])",
                "pass",
            ),
        ),
    ),
    "preemption-on-several-shards": PlantedFault(
        "pods with rules ask for victims that the ledger never evicts",
        (
            CodeEdit(
                "scheduler_worker.core.cycle.unplaced:UnplacedPods.settle",
                "self._cache.shards > 1 and",
                "False and",
            ),
        ),
    ),
}


_OF_KIND = {KUBERNETES: draw_kubernetes, MOVES: draw_moves, SHORT: draw_short}


def _again(plan: Plan, seed: int) -> Plan:
    return replace(plan, seed=seed)


def main() -> int:
    """Run it as a program."""
    name, *what = sys.argv[1:]
    drawn, seeds = draw, what
    if what[0] in _OF_KIND:
        drawn, seeds = _OF_KIND[what[0]], what[1:]
    elif not what[0].isdigit():
        drawn, seeds = partial(_again, Plan.from_json(json.loads(Path(what[0]).read_text()))), what[1:]
    fault = {**FAULTS, **UNDONE}[name]
    server = DrivenRedis.start()
    try:
        with discarding():
            for plan in map(drawn, map(int, seeds)):
                with planted(fault):
                    found = run(plan, server).problems()
                if found:
                    sys.stdout.write(f"seed {plan.seed}\n")
                    without = run(plan, server).problems()
                    sys.stdout.write("\n".join(["without the fault:", *without]) + "\n" if without else "")
                    return 1
    finally:
        server.close()
    sys.stdout.write("every promise was kept\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
