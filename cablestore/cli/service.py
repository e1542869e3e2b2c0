"""Signals: commands wait for SIGTERM, SIGHUP and Ctrl-C, or exit on them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final, Self, TypeVar

T = TypeVar("T")

INTERRUPTED: Final = 130
"""Exit status after Ctrl-C."""
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_POLL_EVERY_S: Final = 1.0


def _stop_signals() -> list[signal.Signals]:
    """Return the signals that end a command. SIGHUP is not included if `nohup` made the process ignore it."""
    return [each for each in _STOP_SIGNALS if each != signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN]


def _act_by_default(number: signal.Signals) -> None:
    """Restore the default action of a signal, so that the next signal ends the process.

    SIGHUP is ignored instead, because a closed terminal sends it twice.
    """
    signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL)


def has_terminal() -> bool:
    """Return True if the process has a controlling terminal. A closed terminal does not count."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def fast_loop() -> asyncio.AbstractEventLoop:
    """Return a loop of uvloop, from the extra cablestore[serve], or of asyncio if it is not installed."""
    if find_spec("uvloop") is None:
        return asyncio.new_event_loop()
    import uvloop  # noqa: PLC0415 - optional

    return uvloop.new_event_loop()


_NOWHERE: Final = logging.NullHandler()
"""Handler that discards the log of nodes in commands without a log. Their error messages report failures."""


def run_on_loop(
    work: Callable[[], Coroutine[Any, Any, T]], make_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> T:
    """Create an event loop, by default of asyncio, then call `work` and run its coroutine.

    Python warns about a coroutine that was never started, so the coroutine is always closed.
    """
    logging.getLogger("cablestore.node").addHandler(_NOWHERE)
    made: Coroutine[Any, Any, T] | None = None
    try:
        with asyncio.Runner(loop_factory=make_loop) as runner:
            made = work()
            return runner.run(made)
    finally:
        if made is not None:
            made.close()


class _StoppedError(BaseException):
    """Exception that ends the work of the main thread, like KeyboardInterrupt."""


class StopSignals:
    """Handle SIGTERM, SIGHUP and Ctrl-C during a `with` block. The first signal ends the block.

    After `catch_on_loop`, the first signal completes the returned future instead. `status` is then the exit status. A second signal
    ends the process at once, which is safe for the store.
    """

    def __init__(self, *, reloads: bool = False) -> None:
        """If `reloads` is True, SIGHUP calls the function of `reload_with`, unless a closed terminal sends it."""
        self.status = 0
        self._reloads = reloads
        self._reload: Callable[[], None] | None = None
        self._is_reload_due = False
        self._had_terminal = has_terminal()
        self._is_stopped = False
        self._handlers_before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for each in _stop_signals():
            self._handlers_before[each] = signal.signal(each, self._interrupt)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        for each, before in self._handlers_before.items():
            signal.signal(each, before)
        # Python 3.11 raises RuntimeError from _StoppedError if a signal arrives while an import creates a class.
        return kind is _StoppedError or (error is not None and isinstance(error.__cause__, _StoppedError))

    def wait(self, look: Callable[[], None]) -> None:
        """Call `look` each second until a signal arrives or `look` raises."""
        while not self._is_stopped:
            look()
            time.sleep(_POLL_EVERY_S)

    def catch_on_loop(self) -> asyncio.Future[signal.Signals]:
        """Catch the signals in the running event loop. Return a future for the first signal that ends the command."""
        loop = asyncio.get_running_loop()
        received: asyncio.Future[signal.Signals] = loop.create_future()
        for each in self._handlers_before:
            loop.add_signal_handler(each, self._receive, each, loop, received)
        return received

    def reload_with(self, reload: Callable[[], None]) -> None:
        """Call a function on each SIGHUP, and at once if a SIGHUP has arrived. Call this in the loop."""
        self._reload = reload
        if self._is_reload_due:
            reload()

    def _interrupt(self, number: int, _: object) -> None:
        if self._is_for_reload(number):
            self._is_reload_due = True
            return
        for each in self._handlers_before:
            _act_by_default(each)
        self._stop(number)
        raise _StoppedError

    def _receive(
        self, number: signal.Signals, loop: asyncio.AbstractEventLoop, received: asyncio.Future[signal.Signals]
    ) -> None:
        if self._is_for_reload(number):
            if self._reload is None:
                self._is_reload_due = True
            else:
                self._reload()
            return
        for each in self._handlers_before:
            loop.remove_signal_handler(each)
            _act_by_default(each)
        self._stop(number)
        if not received.done():
            received.set_result(number)

    def _is_for_reload(self, number: int) -> bool:
        is_terminal_closed = self._had_terminal and not has_terminal()
        return self._reloads and number == signal.SIGHUP and not is_terminal_closed

    def _stop(self, number: int) -> None:
        self._is_stopped = True
        self.status = INTERRUPTED if number == signal.SIGINT else 0


async def is_started(starting: asyncio.Task[None], received: asyncio.Future[signal.Signals]) -> bool:
    """Wait until `starting` ends. Return True, or raise its error.

    If a signal completes `received` first, cancel the task and return False.
    """
    first: set[asyncio.Future[Any]] = {received, starting}
    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        starting.result()
        return True
    starting.cancel()
    return False


def ignore_sigusr1() -> None:
    """Ignore SIGUSR1 until `call_on_sigusr1`. By default it would end the process."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def call_on_sigusr1(act: Callable[[], None]) -> None:
    """Make the running event loop call a function on each SIGUSR1."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, act)


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the body as Ctrl-C does, so that it removes its temporary files.

    A second signal ends the process at once.
    """

    def interrupt(number: int, _: object) -> None:
        _act_by_default(signal.Signals(number))
        raise KeyboardInterrupt

    numbers = [each for each in _stop_signals() if each != signal.SIGINT]
    before = {each: signal.signal(each, interrupt) for each in numbers}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
