"""Notices a call of a plugin from outside that does not end, and ends it.

Plugins are called on the event loop's thread, for a thread of their own would cost more than most of their
calls take. So another thread watches. It interrupts the call by a signal whose handler raises in it: the call
fails, its pods go back to the dispatcher, and the plugin is not asked again. The worker then gives back the
rest and ends. The limit is below the silence after which the dispatcher takes a worker for dead, so no pod
has a fault."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from hoss.errors import HossError
from hoss.telemetry import logger
from scheduler_worker.core.framework.sandbox import CallInterrupted, PluginCalls

LIMIT_SECONDS = 1.0  # of one call; the dispatcher's `worker_timeout_seconds` is 2 by default
_LOOKS = 10  # at the running call, within the limit
_EXIT_CODE = 1


class PluginOff(HossError):  # noqa: N818 - named for what happened, as in hoss.errors
    """A call of a plugin had to be interrupted."""


class PluginWatch:
    """One in a process, on the main thread, where plugins must be called."""

    def __init__(self, worker: str, calls: PluginCalls, *, limit_seconds: float = LIMIT_SECONDS) -> None:
        self._worker = worker
        self._calls = calls
        self._limit = limit_seconds
        self._interrupted = 0  # the number of the call that the signal is meant for
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="plugin watch", daemon=True)

    @contextlib.contextmanager
    def watching(self) -> Iterator["PluginWatch"]:
        """Watch within the block, if there are plugins from outside."""
        if not self._calls.plugins:
            yield self
            return
        before = signal.signal(signal.SIGALRM, self._interrupt)
        self._thread.start()
        try:
            yield self
        finally:
            self._stopped.set()
            self._thread.join()
            signal.signal(signal.SIGALRM, before)

    def check(self) -> None:
        """Raise PluginOff if a plugin is off since a call of it had to be interrupted."""
        for plugin, cause in self._calls.stuck.items():
            raise PluginOff(
                f"plugin {plugin} {cause}: let each call end within milliseconds, or take it out of the"
                " profile"
            )

    def _watch(self) -> None:
        seen, looks = 0, 0
        # Looks are counted, and not seconds: in a process that was stopped for a while no call is to blame.
        while not self._stopped.wait(self._limit / _LOOKS):
            number, running = self._calls.number, self._calls.running
            if not running or number != seen:
                seen, looks = number, 0
                continue
            looks += 1
            if looks == _LOOKS:
                logger().error("plugin_stuck", worker=self._worker, plugin=running, limit_seconds=self._limit)
                self._interrupted = number
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
            elif looks == 2 * _LOOKS:
                # It catches what is raised in it, or computes outside of Python. Nothing else can end it.
                logger().error("plugin_not_interrupted", worker=self._worker, plugin=running)
                os._exit(_EXIT_CODE)

    def _interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        if self._calls.running and self._calls.number == self._interrupted:
            raise CallInterrupted(f"has not answered for {self._limit:g} s")
