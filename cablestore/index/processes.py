"""Processes that share out work on this machine, end when the one that started them ends, and fail with an error of ours.

They come from loky: unlike those of the standard library they need no guard in the caller's main module, and they notice
when one of them is killed at whatever moment.
"""

from __future__ import annotations

import gc
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from threading import Thread, current_thread, main_thread
from typing import Any, Final, TypeVar

from loky.backend import resource_tracker as loky_tracker
from loky.process_executor import ProcessPoolExecutor

from cablestore.errors import StorageError

_PARENT_POLL_S: Final = 0.5

_HUSHED: Final = "ignore:resource_tracker"
"""What the trackers of processes are told: after Ctrl-C they warn of what was cleaned up before they came to it."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def _nothing() -> None:
    pass


@contextmanager
def processes(
    number: int | None, begin: Callable[..., None] = _nothing, arguments: tuple[Any, ...] = ()
) -> Iterator[Executor]:
    """Yield a pool of so many processes, as many as there are cores without a number; each calls `begin` first.

    In all of them Python's `hash` gives the same for the same bytes. When the body raises they are killed. Raises
    StorageError where one of them is killed by others.
    """
    environment = {"PYTHONHASHSEED": str(secrets.randbelow(2**32))}
    pool = ProcessPoolExecutor(
        number or os.cpu_count(), initializer=_begin, initargs=(os.getpid(), begin, arguments), env=environment
    )
    try:
        with _deaf_to_interrupts():
            pool.submit(_nothing)  # starts them all
        yield pool
    except BaseException as error:
        pool.shutdown(kill_workers=True)
        if isinstance(error, BrokenProcessPool):
            raise StorageError(
                "a process that works on the database was killed, maybe for want of memory. Nothing is lost: run it again"
            ) from None
        raise
    pool.shutdown()


def in_order(pool: Executor, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield what `work` makes of each item. Unlike `pool.map` it cancels nothing when left early, which loky cannot bear."""
    for future in [pool.submit(work, item) for item in items]:
        yield future.result()


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Have processes that start meanwhile not hear Ctrl-C, which a terminal sends to all: their parent ends them.

    The parent hears it afterwards: any other thread takes the signal, and in the midst of starting a process loky cannot
    bear the exception.
    """
    before_options = sys.warnoptions[:]
    sys.warnoptions.append(_HUSHED)
    try:
        for tracker in (resource_tracker, loky_tracker):
            tracker.ensure_running()  # once they run they leave the mask alone
    finally:
        sys.warnoptions[:] = before_options
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with _heard_later():
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _heard_later() -> Iterator[None]:
    """Put off Ctrl-C. Only the main thread hears it ever, and nobody where it is ignored."""
    handler = signal.getsignal(signal.SIGINT)
    if current_thread() is not main_thread() or not callable(handler):
        yield
        return
    heard: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if heard:
            signal.raise_signal(signal.SIGINT)


def _begin(parent: int, begin: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    gc.disable()  # rows by the hundred thousand live at once, in no cycles; the process is short-lived
    Thread(target=_end_with, args=(parent,), name="cablestore-parent", daemon=True).start()
    begin(*arguments)


def _end_with(parent: int) -> None:
    """End soon after the parent is gone: a later run works in the same folders."""
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_S)
    os._exit(1)
