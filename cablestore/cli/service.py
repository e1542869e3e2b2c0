"""SIGTERM and Ctrl-C: how commands wait for them, or end with them, and tell systemd that they are ready."""

from __future__ import annotations

import asyncio
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
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_LOOK_EVERY_S: Final = 1.0


def _status_after(number: int) -> int:
    return INTERRUPTED if number == signal.SIGINT else 0


def fast_loop() -> asyncio.AbstractEventLoop:
    """Make a loop of uvloop, of the extra cablestore[serve], or Python's own where it is not installed."""
    if find_spec("uvloop") is None:
        return asyncio.new_event_loop()
    import uvloop  # noqa: PLC0415 - optional

    return uvloop.new_event_loop()


def run_on_loop(
    work: Callable[[], Coroutine[Any, Any, T]], make_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> T:
    """Make a loop, Python's own by default, then the work, and run it.

    Python warns of work that was made and never began. Ctrl-C leaves none, however long the loop takes to make.
    """
    made: Coroutine[Any, Any, T] | None = None
    try:
        with asyncio.Runner(loop_factory=make_loop) as runner:
            made = work()
            return runner.run(made)
    finally:
        if made is not None:
            made.close()


class StopSignal:
    """SIGTERM or Ctrl-C, caught by the running event loop.

    A second one ends the process at once, which no store minds.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._received: asyncio.Future[signal.Signals] = self._loop.create_future()
        for each in _STOP_SIGNALS:
            self._loop.add_signal_handler(each, self._receive, each)

    async def wait(self) -> tuple[str, int]:
        """Wait for the signal; return its name and the exit status."""
        received = await self._received
        return received.name, _status_after(received)

    def _receive(self, number: signal.Signals) -> None:
        for each in _STOP_SIGNALS:
            self._loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)
        if not self._received.done():
            self._received.set_result(number)


class _StoppedError(BaseException):
    """End of whatever the main thread does, as KeyboardInterrupt is."""


class StopSignals:
    """SIGTERM and Ctrl-C without an event loop: they end the body of the `with`, `status` is then the exit status.

    A second one ends the process at once.
    """

    def __init__(self) -> None:
        self.status = 0
        self._is_stopped = False
        self._handlers_before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for each in _STOP_SIGNALS:
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
        for each in _STOP_SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        self._is_stopped = True
        self.status = _status_after(number)
        raise _StoppedError


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end the body as Ctrl-C does, so that it removes its temporary files. A second one ends it at once."""

    def interrupt(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def tell_ready() -> None:
    """Tell the service manager that the service is up, as sd_notify(3) describes: for units with Type=notify."""
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifying, suppress(OSError):  # it is up all the same
        notifying.connect(f"\0{address[1:]}" if address.startswith("@") else address)
        notifying.send(b"READY=1")
