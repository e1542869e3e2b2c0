"""Processes that share out work on this machine, end when the one that started them ends, and fail with an error of ours."""

from __future__ import annotations

import gc
import multiprocessing
import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from threading import Thread
from typing import Any, Final

from cablestore.errors import ReindexError

_HASH_SEED: Final = "PYTHONHASHSEED"


def _nothing() -> None:
    pass


@contextmanager
def processes(
    number: int | None, begin: Callable[..., None] = _nothing, arguments: tuple[Any, ...] = ()
) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of so many processes, as many as there are cores without a number; each calls `begin` first.

    In all of them Python's `hash` gives the same for the same bytes.
    When the body raises they are killed. Raises ReindexError where one of them is killed by others.
    """
    others = multiprocessing.active_children()
    seed = os.environ.get(_HASH_SEED)
    os.environ[_HASH_SEED] = seed or str(secrets.randbelow(2**32))
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(number, mp_context=context, initializer=_begin, initargs=(begin, arguments))
    try:
        yield pool
    except BaseException as error:
        # The pool itself forgets a process that starts while it learns of another one's end, and waits for it forever.
        for process in multiprocessing.active_children():
            if process not in others:
                process.kill()
        pool.shutdown(cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise ReindexError(
                "a process that works on the database was killed, maybe for want of memory. Run again: what is finished is used "
                "again"
            ) from None
        raise
    finally:
        if seed is None:
            del os.environ[_HASH_SEED]
    pool.shutdown()


def _begin(begin: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    gc.disable()  # rows by the hundred thousand live at once, in no cycles; the process is short-lived
    Thread(target=_end_with_parent, name="cablestore-parent", daemon=True).start()
    begin(*arguments)


def _end_with_parent() -> None:
    """End at once when the parent is gone: a later run works in the same folders."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
