"""Redis in a simulation: redis-py's own clients, over connections in memory to a real server.

Commands and replies travel for a while that the seed draws, in virtual time. Between processes and Redis
anything may go wrong: see Link. Each connection keeps its order, as TCP does. Redis carries out one command
at a time and takes no time for it. What is written is seen by blocked readers at once.

A connection belongs to the process that opened it. What a killed process has sent may still be carried
out."""

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from redis.asyncio import Redis
from redis.asyncio.connection import BlockingConnectionPool, Connection, ConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from hoss.redis.access import OpenRedis, RedisAccess, reach
from tools.simulation.loop import Process, current_process
from tools.simulation.redis_backend import DrivenRedis
from tools.simulation.redis_commands import Command, Effect, UnsupportedCommand, as_bytes, name_of

_URL = "redis://simulated:6379/0"
_SCRIPTS = ("EVALSHA", "EVAL")


@dataclass(slots=True)
class Link:
    """How a process reaches Redis. Faults change it at any time."""

    # By SimulatedRedis.cut and heal. silent: what is sent arrives when the link is up again, however late.
    # refused: nobody listens.
    state: Literal["up", "silent", "refused"] = "up"
    delay_seconds: tuple[float, float] = (50e-6, 500e-6)  # one way
    # How often: the connection is reset before what was sent is carried out; after it, before the replies;
    # in the middle of it. And how often Redis serves others in the middle of a pipeline.
    lost_requests: float = 0.0
    lost_replies: float = 0.0
    broken_pipelines: float = 0.0
    parted_pipelines: float = 0.1


class Shadow(Protocol):
    """Does on a model what is done in Redis. It may read, and changes nothing."""

    def carried_out(self, process: str, effect: Effect, now_us: int) -> None: ...
    def rolled_back(self, position: int, keys: Callable[[bytes], bool] | None) -> None: ...
    def emptied(self) -> None: ...


class Observation(NamedTuple):
    """One command that was carried out."""

    process: str
    words: Command
    reply: Any
    position: int  # of the log of writes, after it
    wrote: bool = True  # False: it has certainly changed nothing
    script_names: Mapping[str, str] = {}

    @property
    def command(self) -> str:
        """Its name; of a script, the script's if it is known."""
        name = name_of(self.words)
        if name in _SCRIPTS:
            return self.script_names.get(as_bytes(self.words[1]).decode(), name)
        return name

    @property
    def key(self) -> str:
        """The first; "" for none."""
        words, at = self.words, 1
        match name_of(words):
            case "EVALSHA" | "EVAL":
                at = 3 if int(words[2]) else len(words)
            case "SCRIPT":
                at = len(words)
            case "XREAD":
                at = [as_bytes(word).upper() for word in words].index(b"STREAMS") + 1
        return as_bytes(words[at]).decode(errors="replace") if at < len(words) else ""

    @property
    def reply_bytes(self) -> int:
        """The bytes of strings in the reply."""
        return _bytes_in(self.reply)

    @property
    def error(self) -> str:
        """What Redis refused the command with; "": it did not."""
        return str(self.reply) if isinstance(self.reply, Exception) else ""


class SimulatedRedis:
    """Redis for one seed. A new one on the same server ends the one before. `unix_seconds`: the virtual time.
    `script_names`: what observers see instead of EVALSHA, by digest."""

    def __init__(
        self,
        server: DrivenRedis,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        unix_seconds: Callable[[], float],
        *,
        observe: Callable[[Observation], None] | None = None,
        script_names: dict[str, str] | None = None,
    ) -> None:
        server.begin(random.Random(rng.getrandbits(64)))
        self._server = server
        self._loop = loop
        self.rng = rng
        self._unix_seconds = unix_seconds
        self._observe = observe
        self._script_names = script_names or {}
        self._links: dict[str, Link] = {}
        self._state: Literal["up", "silent", "refused"] = "up"  # of links to come
        self._sessions: dict[int, _Session] = {}  # by number
        self._blocked: dict[int, tuple[_Session, Command]] = {}  # by number: what they wait to read
        self._numbers = itertools.count(1)
        # The server's clock: since a moment of the virtual time, and how fast it goes.
        self._clock_offset, self._clock_rate, self._clock_since = 0.0, 1.0, 0.0
        self._outside = Context()  # Redis belongs to no process
        self.shadow: Shadow | None = None

    # -- clients

    def opener(self, process: str) -> OpenRedis:
        """What `reach` is on a real machine, for the process of that name."""
        link = self.link(process)
        numbers = self._numbers

        class OfProcess(_SimulatedConnection):
            simulated, link_of_process, process_name, number_of = self, link, process, numbers

        def open_redis(
            url: str,  # noqa: ARG001 - there is one Redis
            *,
            timeout_seconds: float,
            connections: int | None = None,
        ) -> RedisAccess:
            real = reach(_URL, timeout_seconds=timeout_seconds, connections=connections)
            return _SimulatedAccess(real, OfProcess)

        return open_redis

    def link(self, process: str) -> Link:
        """The link of the process of that name."""
        return self._links.setdefault(process, Link(self._state))

    # -- what checkers and faults may do, in no time

    def now_us(self) -> int:
        """The server's clock, Unix microseconds."""
        passed = self._unix_seconds() - self._clock_since
        return int((self._clock_since + passed * self._clock_rate + self._clock_offset) * 1e6)

    def step_clock(self, seconds: float) -> None:
        """The server's clock jumps."""
        self._clock_offset += seconds

    def drift_clock(self, rate: float) -> None:
        """From now on the server's clock goes `rate` times as fast as the virtual time."""
        now, since = self._unix_seconds(), self._clock_since
        self._clock_offset += (now - since) * (self._clock_rate - 1.0)
        self._clock_rate, self._clock_since = rate, now

    def read(self, *command: str | bytes | float) -> Any:
        """The reply to a reading command, as redis-py gets it from the server."""
        return self._server.read(command, self.now_us())

    def read_all(self, *commands: Command) -> list[Any]:
        """The replies to several reading commands, of one moment and in one exchange with the server."""
        return self._server.read_all(commands, self.now_us())

    @property
    def position(self) -> int:
        """Of the log of writes: to roll back to."""
        return self._server.position

    def roll_back(self, position: int, keys: Callable[[bytes], bool] | None = None) -> None:
        """Lose what was written after that position: of all keys, or of those for which `keys` is true."""
        self._server.roll_back(position, self.now_us(), keys)
        if self.shadow is not None:
            self.shadow.rolled_back(position, keys)

    def empty(self) -> None:
        """Lose every key."""
        self._server.empty()
        if self.shadow is not None:
            self.shadow.emptied()

    def refuse_writes(self, *, refused: bool = True) -> None:
        """As with a full disk: writes get an error that begins with MISCONF."""
        self._server.refuse_writes(refused=refused)

    def restart(self) -> None:
        """Reset every connection, and begin another run without loaded scripts."""
        self._server.restart()
        self._reset(self._sessions.values())

    def cut(self, how: Literal["silent", "refused"], *processes: str) -> None:
        """Cut these processes off; without names, all of them. "refused" resets their connections."""
        for link in self._of(processes, how):
            if how == "refused":
                self._reset(session for session in self._sessions.values() if session.link is link)

    def heal(self, *processes: str) -> None:
        """These processes, or all, reach Redis again. What was on its way goes on."""
        for link in self._of(processes, "up"):
            for session in self._sessions.values():
                if session.link is link:
                    session.go_on()

    def _of(self, processes: Sequence[str], state: Literal["up", "silent", "refused"]) -> list[Link]:
        """The links of these processes, or all links; put into that state."""
        if not processes:
            self._state = state
        links = [self.link(name) for name in processes or tuple(self._links)]
        for link in links:
            link.state = state
        return links

    # -- the server's end of connections

    def accept(self, link: Link, process: str) -> "_Session":
        """A new connection of the running process."""
        session = _Session(self, next(self._numbers), link, process)
        self._sessions[session.number] = session
        return session

    def block(self, session: "_Session", command: Command) -> None:
        """The connection waits until this command finds something."""
        self._blocked[session.number] = session, command

    def unblock(self, session: "_Session") -> None:
        """The connection does not wait any more."""
        self._blocked.pop(session.number, None)

    def forget(self, session: "_Session") -> None:
        """Of this connection nothing is under way any more."""
        self._sessions.pop(session.number, None)

    def later(self, seconds: float, callback: Callable[..., object], *arguments: Any) -> asyncio.TimerHandle:
        """Call it after so much virtual time, whatever becomes of the process that asks for it."""
        return self._loop.call_at(self._loop.time() + seconds, callback, *arguments, context=self._outside)

    def carry_out(self, commands: Sequence[Command], process: str) -> list[Any]:
        """Run commands now, and answer blocked readers of what they write."""
        blocked: dict[Command, list[_Session]] = {}
        for number in sorted(self._blocked):
            session, command = self._blocked[number]
            blocked.setdefault(command, []).append(session)
        try:
            now_us = self.now_us()
            replies, effects, found = self._server.carry_out(commands, now_us, list(blocked))
        except UnsupportedCommand as exc:  # for the caller, who does not expect it
            return [exc for _ in commands]
        for effect in effects:
            self._tell(process, effect)
            if self.shadow is not None:
                self.shadow.carried_out(process, effect, now_us)
        # No replies if nothing was written.
        for (command, readers), entries in zip(blocked.items(), found, strict=False):
            for session in readers if entries is not None else ():
                self._tell(session.process_name, Effect(command, entries, self.position, wrote=False))
                session.unblock(entries)
        return replies

    def _tell(self, process: str, done: Effect) -> None:
        if self._observe is not None:
            self._observe(Observation(process, *done, self._script_names))

    def _reset(self, sessions: "Iterable[_Session]") -> None:
        for session in list(sessions):
            session.reset()


class _SimulatedAccess:
    """Real access whose clients connect to the simulation. It is of one server."""

    def __init__(self, real: RedisAccess, connection_class: "type[_SimulatedConnection]") -> None:
        self._real = real
        self._connection_class = connection_class

    async def at(self, key: str) -> Redis:
        client = await self._real.at(key)
        if not isinstance(client.connection_pool, _SimulatedPool):
            client.connection_pool = _SimulatedPool(client.connection_pool, self._connection_class)
        return client

    async def every(self) -> list[Redis]:
        return [await self.at("")]

    def doubt(self) -> None:
        self._real.doubt()

    async def close(self) -> None:
        await self._real.close()


class _SimulatedPool(BlockingConnectionPool):
    """redis-py's pool without its measurements and locks. A release is done at once: redis-py shields it by a
    task, which would be every second step of a simulation."""

    def __init__(self, real: ConnectionPool, connection_class: "type[_SimulatedConnection]") -> None:
        """`real`: the pool in whose place this one is."""
        patience = real.timeout if isinstance(real, BlockingConnectionPool) else None
        super().__init__(real.max_connections, patience, connection_class, **real.connection_kwargs)
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._released.set_result(None)

    async def get_connection(self, command_name: Any = None, *_: Any, **__: Any) -> Any:  # noqa: ARG002
        while not self.can_get_connection():
            freed = asyncio.get_running_loop().create_future()
            self._waiting.append(freed)
            try:
                await asyncio.wait_for(freed, self.timeout)
            except asyncio.TimeoutError as exc:
                raise RedisConnectionError("No connection available.") from exc
        connection = self.get_available_connection()  # type: ignore[no-untyped-call]
        try:
            await self.ensure_connection(connection)
        except BaseException:
            self.release(connection)
            raise
        return connection

    def release(self, connection: Any) -> "asyncio.Future[None]":  # type: ignore[override]
        self._in_use_connections.remove(connection)
        self._available_connections.append(connection)
        while self._waiting and self._waiting[0].done():  # who has given up
            self._waiting.popleft()
        if self._waiting:
            self._waiting.popleft().set_result(None)
        return self._released

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """One after another, without the tasks of redis-py: a pool may be closed by what a killed process
        left, when that is freed and no loop runs."""
        closed = [*self._available_connections, *(self._in_use_connections if inuse_connections else ())]
        for connection in closed:
            await connection.disconnect()


class _Session:
    """A connection as the network and the server see it. What is sent arrives in order, and so do replies."""

    def __init__(self, redis: SimulatedRedis, number: int, link: Link, process: str) -> None:
        self._redis = redis
        self.number = number
        self.link = link
        self.process_name = process
        self._process: Process | None = current_process()
        self._requests: deque[Sequence[Command]] = deque()  # on their way, or waiting to be carried out
        self._answers: deque[list[Any] | None] = deque()  # on their way; None: the connection was reset
        self._arrived = 0  # of requests: those that could not be carried out yet
        self._delivered = 0  # of answers: those that the link holds up
        self._closed_by_client = False
        self._over = False  # for the server
        self._is_blocked = False
        self._waits_until: asyncio.TimerHandle | None = None
        # At the client.
        self.replies: deque[Any] = deque()
        self.was_reset = False
        self.reader: asyncio.Future[None] | None = None

    # -- from the client

    def send(self, commands: Sequence[Command]) -> None:
        self._requests.append(commands)
        self._redis.later(self._delay(), self._arrive)

    def close(self) -> None:
        """The client ends the connection. What it sent is under way."""
        self._closed_by_client = True
        self._serve()

    # -- at the server

    def _arrive(self) -> None:
        self._arrived += 1
        self._serve()

    def _serve(self) -> None:
        while self._arrived and self.link.state != "silent" and not self._is_blocked and not self._over:
            self._arrived -= 1
            self._carry_out(self._requests.popleft())
        if self._is_abandoned() and not self._requests:
            self._over = True
        if self._over and not self._answers:
            self._end_blocking()
            self._redis.forget(self)

    def _is_abandoned(self) -> bool:
        return self._closed_by_client or (self._process is not None and not self._process.alive)

    def _carry_out(self, commands: Sequence[Command]) -> None:
        draw, link = self._redis.rng.random, self.link
        if (self._is_abandoned() and draw() < 0.5) or draw() < link.lost_requests:
            self.reset()
            return
        several = len(commands) > 1 and name_of(commands[0]) != "MULTI"
        broken = several and draw() < link.broken_pipelines
        if broken or (several and draw() < link.parted_pipelines):
            first = self._redis.rng.randint(1, len(commands) - 1)
            commands, rest = commands[:first], commands[first:]
            if not broken:
                self._requests.appendleft(rest)
                self._redis.later(self._delay(), self._arrive)
        if self._wait_for_data(commands):
            return
        replies = self._redis.carry_out(commands, self.process_name)
        if draw() < link.lost_replies:
            self.reset()
            return
        self._answer(replies)
        if broken:
            self.reset()

    def _wait_for_data(self, commands: Sequence[Command]) -> bool:
        """Whether this is a blocking read that finds nothing yet."""
        if name_of(commands[0]) != "XREAD":
            return False
        words = list(map(as_bytes, commands[0]))
        at = next((at for at, word in enumerate(words[:4]) if word.upper() == b"BLOCK"), None)
        if at is None:
            return False
        command: Command = (*words[:at], *words[at + 2 :])
        (reply,) = self._redis.carry_out([command], self.process_name)
        if reply is not None:
            self._answer([reply])
            return True
        self._is_blocked = True
        self._redis.block(self, command)
        if milliseconds := int(words[at + 1]):
            self._waits_until = self._redis.later(milliseconds / 1000, self.unblock, None)
        return True

    def unblock(self, entries: Any) -> None:
        """End a blocking read with these entries; None: its time is over."""
        self._end_blocking()
        self._answer([entries])
        self._redis.later(0.0, self._serve)

    def _end_blocking(self) -> None:
        self._is_blocked = False
        self._redis.unblock(self)
        if self._waits_until is not None:
            self._waits_until.cancel()
            self._waits_until = None

    def reset(self) -> None:
        """The server ends the connection: what is on its way to it is lost."""
        if self._over:
            return
        self._over = True
        self._end_blocking()
        self._requests.clear()
        if self._redis.rng.random() < 0.5:  # replies on their way may still arrive
            self._answers.clear()
        self._answer(None)

    # -- back to the client

    def _answer(self, replies: list[Any] | None) -> None:
        self._answers.append(replies)
        self._redis.later(self._delay(), self._deliver)

    def _deliver(self) -> None:
        self._delivered += 1
        self._hand_over()

    def _hand_over(self) -> None:
        while self._delivered and self._answers and self.link.state != "silent":
            self._delivered -= 1
            replies = self._answers.popleft()
            if replies is None:
                self.was_reset = True
            else:
                self.replies.extend(replies)
            if self.reader is not None and not self.reader.done():
                self.reader.set_result(None)
        self._serve()

    def go_on(self) -> None:
        """The link is up again."""
        self._redis.later(self._delay(), self._hand_over)

    def _delay(self) -> float:
        return self._redis.rng.uniform(*self.link.delay_seconds)


class _SimulatedConnection(Connection):
    """redis-py's connection, without socket and handshake. Subclasses know their process."""

    simulated: SimulatedRedis
    link_of_process: Link
    process_name: str
    number_of: "itertools.count[int]"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._number = next(self.number_of)
        self._session: _Session | None = None

    def __hash__(self) -> int:
        # redis-py keeps connections in a set, and closes them in its order.
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other

    def __del__(self, _warnings: Any = None) -> None:
        """There is no socket that could be left open."""

    @property
    def is_connected(self) -> bool:
        return self._session is not None

    async def connect(self) -> None:
        if self._session is not None:
            return
        link = self.link_of_process
        if link.state == "silent":
            await asyncio.sleep(self.socket_connect_timeout or 0.0)
            raise RedisTimeoutError("Timeout connecting to server")
        await asyncio.sleep(sum(self.simulated.rng.uniform(*link.delay_seconds) for _ in range(2)))
        if link.state != "up":
            raise RedisConnectionError("Error 111 connecting to the simulated Redis. Connection refused.")
        self._session = self.simulated.accept(link, self.process_name)

    def pack_command(self, *words: Any) -> Any:
        return [words]

    def pack_commands(self, commands: Iterable[Iterable[Any]]) -> Any:
        return [tuple(command) for command in commands]

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:  # noqa: ARG002
        if self._session is None:
            await self.connect()
        session = self._session
        if session is None or session.was_reset:
            await self.disconnect()
            raise RedisConnectionError("Error 104 while writing to socket. Connection reset by peer.")
        session.send(command)

    async def can_read(self) -> bool:
        """Whether the connection is unfit for the next command."""
        return self._session is None or self._session.was_reset or bool(self._session.replies)

    can_read_destructive = can_read

    async def read_response(
        self,
        disable_decoding: bool = False,  # noqa: ARG002
        timeout: float | None = None,
        *,
        disconnect_on_error: bool = True,
        push_request: bool | None = False,  # noqa: ARG002
    ) -> Any:
        session = self._session
        if session is None:
            raise RedisConnectionError("Connection closed by server.")
        if not session.replies and not session.was_reset:
            try:
                arrived = await self._arrival(session, self.socket_timeout if timeout is None else timeout)
            except BaseException:
                if disconnect_on_error:
                    await self.disconnect()
                raise
            if not arrived:
                if timeout is not None:
                    return None
                await self.disconnect()
                raise RedisTimeoutError("Timeout reading from the simulated Redis")
        if not session.replies:
            await self.disconnect()
            raise RedisConnectionError("Connection closed by server.")
        reply = session.replies.popleft()
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def _arrival(self, session: _Session, seconds: float | None) -> bool:
        """Wait until something arrives. False: it took too long."""
        loop = asyncio.get_running_loop()
        session.reader = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _give_up, session.reader)
        try:
            await session.reader
        finally:
            session.reader = None
            if timer is not None:
                timer.cancel()
        return bool(session.replies) or session.was_reset

    async def disconnect(self, *_: Any, **__: Any) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _give_up(reader: "asyncio.Future[None]") -> None:
    if not reader.done():
        reader.set_result(None)


def _bytes_in(reply: Any) -> int:
    """The bytes of strings in a reply."""
    if isinstance(reply, bytes):
        return len(reply)
    if isinstance(reply, dict):
        return sum(_bytes_in(field) + _bytes_in(value) for field, value in reply.items())
    return sum(map(_bytes_in, reply)) if isinstance(reply, (list, set)) else 0
