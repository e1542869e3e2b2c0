"""SIGTERM, SIGHUP and Ctrl-C: how commands wait for them, or end with them, and tell systemd that they are ready."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any, Final, Self, TypeVar

T = TypeVar("T")

INTERRUPTED: Final = 130
"""Exit status after Ctrl-C."""
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_EVERY_S: Final = 1.0


def _status_after(number: int) -> int:
    return INTERRUPTED if number == signal.SIGINT else 0


def _stop_signals() -> list[signal.Signals]:
    """Return the signals that end a command. `nohup` has SIGHUP ignored, and so it stays."""
    return [each for each in _STOP_SIGNALS if each != signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN]


def _act_by_default(number: signal.Signals) -> None:
    """Let the next signal end the process at once. A closed terminal sends SIGHUP twice."""
    signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL)


def has_terminal() -> bool:
    """Return True while the process has a controlling terminal. It loses it when the terminal is closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def fast_loop() -> asyncio.AbstractEventLoop:
    """Make a loop of uvloop, of the extra cablestore[serve], or Python's own where it is not installed."""
    if find_spec("uvloop") is None:
        return asyncio.new_event_loop()
    import uvloop  # noqa: PLC0415 - optional

    return uvloop.new_event_loop()


_NOWHERE: Final = logging.NullHandler()
"""Handler of the log of nodes where a command sets up none: an error of the command says what matters of it."""


def run_on_loop(
    work: Callable[[], Coroutine[Any, Any, T]], make_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> T:
    """Make a loop, Python's own by default, then the work, and run it.

    Python warns of work that was made and never began. Ctrl-C leaves none, however long the loop takes to make.
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


class StopSignal:
    """SIGTERM, Ctrl-C or SIGHUP, caught by the running event loop.

    A second one ends the process at once, which no store minds.
    """

    def __init__(self, reload: Callable[[], None] | None = None) -> None:
        """`reload` is called instead on a SIGHUP that does not come from a closed terminal."""
        self._loop = asyncio.get_running_loop()
        self._received: asyncio.Future[signal.Signals] = self._loop.create_future()
        self._reload = reload
        self._had_terminal = has_terminal()
        self._signals = _stop_signals()
        for each in self._signals:
            self._loop.add_signal_handler(each, self._receive, each)

    async def wait(self, starting: asyncio.Task[None] | None = None) -> tuple[str, int]:
        """Wait for the signal; return its name and the exit status.

        The signal cancels work that is still starting. Raises its error if it fails before.
        """
        if starting is not None:
            first: set[asyncio.Future[Any]] = {self._received, starting}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
            starting.cancel()
        received = await self._received
        return received.name, _status_after(received)

    def _receive(self, number: signal.Signals) -> None:
        is_closed = self._had_terminal and not has_terminal()
        if number == signal.SIGHUP and self._reload is not None and not is_closed:
            self._reload()
            return
        for each in self._signals:
            self._loop.remove_signal_handler(each)
            _act_by_default(each)
        if not self._received.done():
            self._received.set_result(number)


def call_on_sigusr1(act: Callable[[], None]) -> None:
    """Have the running event loop call a function on each SIGUSR1."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, act)


class _StoppedError(BaseException):
    """End of whatever the main thread does, as KeyboardInterrupt is."""


class StopSignals:
    """SIGTERM, SIGHUP and Ctrl-C without an event loop: they end the body of the `with`, `status` is then the exit status.

    A second one ends the process at once.
    """

    def __init__(self) -> None:
        self.status = 0
        self._is_stopped = False
        self._handlers_before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for each in _stop_signals():
            self._handlers_before[each] = signal.signal(each, self._receive)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        for each, before in self._handlers_before.items():
            signal.signal(each, before)
        return kind is _StoppedError

    def wait(self, look: Callable[[], None]) -> None:
        """Call `look` each second until a signal comes or `look` raises."""
        while not self._is_stopped:
            look()
            time.sleep(_LOOK_EVERY_S)

    def _receive(self, number: int, _: object) -> None:
        for each in self._handlers_before:
            _act_by_default(each)
        self._is_stopped = True
        self.status = _status_after(number)
        raise _StoppedError


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the body as Ctrl-C does, so that it removes its temporary files.

    A second one ends it at once.
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


def tell_ready() -> None:
    """Tell the service manager that the service is up, as sd_notify(3) describes: for units with Type=notify."""
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifying, suppress(OSError):  # it is up all the same
        notifying.connect(f"\0{address[1:]}" if address.startswith("@") else address)
        notifying.send(b"READY=1")
