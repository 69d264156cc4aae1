"""What strikes a platform: each kind of fault of a plan, from its beginning to its end."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from tools.simulation import plan as p
from tools.simulation.ledger_history import LedgerHistory
from tools.simulation.loop import Process
from tools.simulation.plan import Act
from tools.simulation.world import DISPATCHER, World

_LEASE = "{hoss}:journal:lease"  # ends with the address of who holds it
_WITHIN_SECONDS = 5.0  # in which a process takes the step at which it is killed; else it is spared


# What each does to the requests of a while: fields of ApiFaults, and the counters that show that it struck.
_OF_REQUESTS: dict[str, dict[str, Any]] = {
    p.API_BUSY: {"refused": 0.4},
    p.API_LOSES_ANSWERS: {"lost_answers": 0.3},
    p.API_LATE: {"late": 0.3},
    p.WATCHES_LAG: {"cache_seconds": 1.5},
    p.WEBHOOK_AWAY: {"webhook_away": True},
    p.WEBHOOK_LATE: {"late_reviews": 0.5},
    p.BINDINGS_LATE: {"late_bindings": 0.8, "late_seconds": 9.0},
    p.BINDINGS_ABANDONED: {"abandoned_bindings": 0.5},
}


class Faults:
    """Makes the faults of a plan. `reached` counts those that happened to somebody."""

    def __init__(self, world: World, ledger: LedgerHistory) -> None:
        self.reached: Counter[str] = Counter()
        self._world = world
        self._ledger = ledger
        self._kinds: dict[str, Callable[[Act], Awaitable[bool]]] = {
            p.KILL: self._kill,
            p.KILL_AT_STEP: self._kill_at_step,
            p.STOP: self._stop,
            p.FREEZE: self._freeze,
            p.FREEZE_AT_STEP: self._freeze_at_step,
            p.KILL_AMID_MOVE: self._kill_at_step,
            p.FREEZE_AMID_MOVE: self._freeze_at_step,
            p.CUT: self._cut,
            p.CUT_ONE_WAY: self._cut_one_way,
            p.BREAK: self._break,
            p.DROP_REPLIES: self._drop_replies,
            p.REDIS_SILENT: self._redis_away,
            p.REDIS_REFUSED: self._redis_away,
            p.REDIS_RESTART: self._redis_restarts,
            p.REDIS_REFUSES_WRITES: self._redis_refuses_writes,
            p.REDIS_LOSES_REPLIES: self._redis_loses_replies,
            p.REDIS_ROLLS_BACK: self._redis_rolls_back,
            p.REDIS_EMPTIED: self._redis_emptied,
            p.REDIS_CLOCK: self._redis_clock,
            p.CLOCK: self._clock,
            p.REDIS_DRIFTS: self._redis_drifts,
            p.DRIFT: self._drift,
            p.API_SILENT: self._api_away,
            p.API_REFUSED: self._api_away,
            p.WATCHES_CUT: self._watches_cut,
            p.HISTORY_FORGOTTEN: self._history_forgotten,
            **dict.fromkeys(_OF_REQUESTS, self._api_faulty),
        }

    async def strike(self, act: Act) -> bool:
        """Make a fault, and end it. Returns whether it happened to somebody."""
        if act.target == p.LEADER:
            act = replace(act, target=self._leader())
        struck = await self._kinds[act.what](act)
        self.reached[act.what] += struck
        return struck

    def end_all(self) -> None:
        """Whatever is left of a fault ends, and everybody runs."""
        world = self._world
        world.network.heal()
        world.redis.heal()
        world.redis.refuse_writes(refused=False)
        if world.api is not None:
            world.api.faults.end()
        for name in world.services:
            world.thaw(name)
        self.start_all()

    def start_all(self) -> None:
        """Start what does not run."""
        for name, service in self._world.services.items():
            if not service.runs:
                self._world.start(name)

    # Each returns whether it happened to somebody.

    async def _kill(self, act: Act) -> bool:
        ran = self._world.services[act.target].runs
        self._world.kill(act.target)
        await self._started_again(act)
        return ran

    async def _kill_at_step(self, act: Act) -> bool:
        if not await self._at_step(act, lambda: self._world.kill(act.target)):
            return False
        await self._started_again(act)
        return True

    async def _freeze_at_step(self, act: Act) -> bool:
        if not await self._at_step(act, lambda: self._world.freeze(act.target)):
            return False
        await asyncio.sleep(act.seconds)
        self._world.thaw(act.target)
        return True

    async def _at_step(self, act: Act, strike: Callable[[], None]) -> bool:
        """At exactly that step of the process from now on, so at any of its awaits. Amid a move: from the
        moment at which a target is reserved, or a move is made in one step."""
        process, struck = self._world.services[act.target].process, asyncio.Event()
        if process is None or not process.alive:
            return False
        amid = act.what in (p.KILL_AMID_MOVE, p.FREEZE_AMID_MOVE)
        last = None if amid else process.steps + act.number
        moved = self._ledger.moved_at_once

        def before_step(running: Process) -> None:
            nonlocal last
            if last is None and (self._ledger.has_targets() or self._ledger.moved_at_once > moved):
                last = running.steps + act.number
            if last is not None and running.steps >= last and running.alive:
                running.before_step = None
                strike()
                struck.set()

        process.before_step = before_step
        try:
            await asyncio.wait_for(struck.wait(), _WITHIN_SECONDS)
        except asyncio.TimeoutError:
            process.before_step = None
            return False
        return True

    async def _stop(self, act: Act) -> bool:
        service = self._world.services[act.target]
        ran, gone = service.runs, service.gone
        self._world.stop(act.target)
        await asyncio.sleep(act.seconds)
        if ran:
            await gone.wait()  # it gives its last calls a second
        await self._started_again(replace(act, seconds=0.0))
        return ran

    async def _started_again(self, act: Act) -> None:
        await asyncio.sleep(act.seconds)
        if not self._world.services[act.target].runs:
            self._world.start(act.target)

    async def _freeze(self, act: Act) -> bool:
        ran = self._world.services[act.target].runs
        self._world.freeze(act.target)
        await asyncio.sleep(act.seconds)
        self._world.thaw(act.target)
        return ran

    async def _cut(self, act: Act) -> bool:
        self._world.network.partition(act.target, act.other)
        await asyncio.sleep(act.seconds)
        self._world.network.heal(act.target, act.other)
        return True

    async def _cut_one_way(self, act: Act) -> bool:
        self._world.network.cut(act.target, act.other)
        await asyncio.sleep(act.seconds)
        self._world.network.heal(act.target, act.other)
        return True

    async def _break(self, act: Act) -> bool:
        self._world.network.break_connections(act.target, act.other)
        return True

    async def _drop_replies(self, act: Act) -> bool:
        faults = self._world.network.faults
        faults.drop_reply, faults.repeat_request = 0.3, 0.2
        await asyncio.sleep(act.seconds)
        faults.drop_reply = faults.repeat_request = 0.0
        return True

    async def _redis_away(self, act: Act) -> bool:
        """For one service, or for all."""
        whom = (act.target,) if act.target else ()
        self._world.redis.cut("silent" if act.what == p.REDIS_SILENT else "refused", *whom)
        await asyncio.sleep(act.seconds)
        self._world.redis.heal(*whom)
        return True

    async def _redis_restarts(self, _act: Act) -> bool:
        self._world.redis.restart()
        return True

    async def _redis_refuses_writes(self, act: Act) -> bool:
        self._world.redis.refuse_writes()
        await asyncio.sleep(act.seconds)
        self._world.redis.refuse_writes(refused=False)
        return True

    async def _redis_loses_replies(self, act: Act) -> bool:
        """Of a tenth of all; or of most, where it is one service."""
        names, often = ([act.target], 0.6) if act.target else (list(self._world.services), 0.1)
        links = [self._world.redis.link(name) for name in names]
        for link in links:
            link.lost_replies, link.lost_requests = often, often / 2 if act.target else often
        await asyncio.sleep(act.seconds)
        for link in links:
            link.lost_replies = link.lost_requests = 0.0
        return True

    async def _redis_rolls_back(self, act: Act) -> bool:
        """Acknowledged writes are lost, as by a fail-over to a replica that was behind."""
        redis, slot = self._world.redis, act.target.encode()
        of_slot = (lambda key: key.startswith(slot)) if slot else None
        redis.roll_back(max(0, redis.position - act.number), of_slot)
        self._lost()
        return True

    async def _redis_emptied(self, _act: Act) -> bool:
        self._world.redis.empty()
        self._lost()
        return True

    def _lost(self) -> None:
        self._world.redis.restart()
        self._ledger.look_again()
        if self._world.api is not None:
            self._world.api.losses += 1

    async def _redis_clock(self, act: Act) -> bool:
        self._world.redis.step_clock(act.number)
        return True

    async def _clock(self, act: Act) -> bool:
        host = self._world.services[act.target].host
        if host is not None:
            host.jumped += act.number
        return host is not None

    async def _redis_drifts(self, act: Act) -> bool:
        self._world.redis.drift_clock(1 + act.number / 1000)
        return True

    async def _drift(self, act: Act) -> bool:
        host = self._world.services[act.target].host
        if host is not None:
            host.drift(1 + act.number / 1000)
        return host is not None

    async def _api_away(self, act: Act) -> bool:
        """The API server, for one service or for all."""
        api = self._world.required_api()
        api.faults.away[act.target] = "silent" if act.what == p.API_SILENT else "refused"
        api.cut_watches(act.target)
        await asyncio.sleep(act.seconds)
        api.faults.away.pop(act.target, None)
        return True

    async def _watches_cut(self, _act: Act) -> bool:
        return self._world.required_api().cut_watches() > 0

    async def _history_forgotten(self, _act: Act) -> bool:
        """What was being listed or is watched from an old version has to be listed anew."""
        api = self._world.required_api()
        api.model.compact()
        return api.cut_watches() > 0

    async def _api_faulty(self, act: Act) -> bool:
        """Requests fare badly for a while. Whether one did is counted where that happens."""
        faults = self._world.required_api().faults
        faults.begin(_OF_REQUESTS[act.what])
        await asyncio.sleep(act.seconds)
        faults.end(_OF_REQUESTS[act.what])
        return True

    def _leader(self) -> str:
        """The dispatcher that holds the lease; the first one where nobody does."""
        held = (self._world.redis.read("GET", _LEASE) or b"").decode()
        dispatchers = [name for name, service in self._world.services.items() if service.kind == DISPATCHER]
        return next(
            (name for name in dispatchers if held.endswith(self._world.addresses[name])), dispatchers[0]
        )
