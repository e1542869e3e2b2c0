"""Pools of processes on this machine.

The processes end when their parent ends. If one of them is killed, the parent gets a StorageError. They are loky
processes: unlike processes of the standard library, they do not need a guard in the caller's main module. The pool
always detects that one of them was killed.
"""

from __future__ import annotations

import gc
import os
import secrets
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager
from importlib.util import find_spec
from threading import Thread, current_thread, main_thread
from typing import Any, Final, TypeVar

from cablestore.errors import StorageError
from cablestore.extras import naming_extras
from cablestore.index.cores import usable_cores

_PARENT_POLL_S: Final = 0.5

_NO_TRACKER_WARNINGS: Final = "ignore:resource_tracker"
"""Warning filter of the resource trackers. After Ctrl-C they would warn about removed files."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def _nothing() -> None:
    pass


def can_start_processes() -> bool:
    """Return True if the extra that process pools need is installed. Without it one process does all work."""
    return find_spec("loky") is not None


@contextmanager
def process_pool(
    number: int | None, begin: Callable[..., None] = _nothing, arguments: tuple[Any, ...] = ()
) -> Iterator[Executor]:
    """Yield a pool of `number` processes, by default one per usable core. Each calls `begin(*arguments)` first.

    Python's `hash` of the same bytes is the same in all of them. If the body raises, the processes are killed. Raises
    StorageError if a process is killed from outside, MissingExtraError if `can_start_processes` returns False.
    """
    with naming_extras("work in several processes needs"):
        from loky.process_executor import ProcessPoolExecutor  # noqa: PLC0415 - a fifth of the import time of a store

    environment = {"PYTHONHASHSEED": str(secrets.randbelow(2**32))}
    pool: ProcessPoolExecutor | None = None
    try:
        # Ctrl-C in the constructor would leak a semaphore, and loky's tracker would warn about it.
        with _interrupts_blocked():
            pool = ProcessPoolExecutor(
                number or usable_cores(), initializer=_begin, initargs=(os.getpid(), begin, arguments), env=environment
            )
            pool.submit(_nothing)  # starts all processes
        yield pool
    except BaseException as error:
        if pool is not None:
            pool.shutdown(kill_workers=True)
        if isinstance(error, BrokenExecutor):
            raise StorageError(
                "a worker process was killed, perhaps because memory ran out. Nothing is lost. Run the command again"
            ) from None
        raise
    pool.shutdown()


def in_order(
    pool: Executor, work: Callable[[Item], Result], items: Iterable[Item], *, most: int | None = None
) -> Iterator[Result]:
    """Yield the result of `work` for each item, in the order of the items. At most `most` items are in progress.

    Unlike `pool.map`, it does not cancel work when the caller stops early, because that breaks loky.
    """
    in_progress: deque[Future[Result]] = deque()
    for item in items:
        in_progress.append(pool.submit(work, item))
        if len(in_progress) == most:
            yield in_progress.popleft().result()
    while in_progress:
        yield in_progress.popleft().result()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C in the processes that the body starts. A terminal sends it to all of them; their parent ends them.

    The parent handles Ctrl-C after the body, because loky breaks if KeyboardInterrupt is raised while it starts a
    process. Blocking the signal in this thread is not enough: other threads of the parent could receive it.
    """
    from multiprocessing import resource_tracker  # noqa: PLC0415 - as above

    from loky.backend import resource_tracker as loky_tracker  # noqa: PLC0415 - as above

    before_options = sys.warnoptions[:]
    sys.warnoptions.append(_NO_TRACKER_WARNINGS)
    try:
        for tracker in (resource_tracker, loky_tracker):
            tracker.ensure_running()  # running trackers do not change the signal mask
    finally:
        sys.warnoptions[:] = before_options
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with _interrupt_delayed():
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _interrupt_delayed() -> Iterator[None]:
    """Delay Ctrl-C until the body ends. Other threads than the main thread never receive it, so they do nothing here.

    If the signal is ignored, it remains ignored.
    """
    handler = signal.getsignal(signal.SIGINT)
    if current_thread() is not main_thread() or not callable(handler):
        yield
        return
    received: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            signal.raise_signal(signal.SIGINT)


def _begin(parent: int, begin: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    gc.disable()  # the process is short-lived, and its hundreds of thousands of rows do not form reference cycles
    Thread(target=_end_with, args=(parent,), name="cablestore-parent", daemon=True).start()
    begin(*arguments)


def _end_with(parent: int) -> None:
    """End this process soon after its parent has ended, because a later run uses the same folders."""
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_S)
    os._exit(1)
