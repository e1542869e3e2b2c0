"""The threads of a store for asyncio: a few threads for any number of calls. Threads do not wait for events."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, TypeVar

from cablestore import limits
from cablestore.arguments import check
from cablestore.errors import CableStoreError, StoreClosedError
from cablestore.forks import ProcessBound, bind
from cablestore.index.batches import Progress, no_progress

T = TypeVar("T")


def on_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: Any) -> None:
    """Call `function` with `arguments` soon, in the thread of `loop`. Do nothing if the loop is closed."""
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:  # the loop was closed, so no task waits
        return


class Threads(ProcessBound):
    """Threads in which blocking calls run: some for reads, one for writes, one for long work. They start on demand.

    A cancelled caller gets its CancelledError at once. A call that has not begun is discarded; a call that has begun
    completes in its thread.
    """

    def __init__(self, readers: int = limits.READ_THREADS) -> None:
        self._reader: Final = ThreadPoolExecutor(readers, "cablestore-aio-read")
        self._writer: Final = ThreadPoolExecutor(1, "cablestore-aio-write")
        self._worker: Final = ThreadPoolExecutor(1, "cablestore-aio-work")
        self._works: set[Work[Any]] = set()
        self._closing: Future[None] | None = None
        bind(self)

    async def read(self, call: Callable[[], T]) -> T:
        """Run a short call that reads, and return its result."""
        loop = _own_loop()
        return await asyncio.wrap_future(_submit(self._reader, call), loop=loop)

    async def write(self, call: Callable[[], T]) -> T:
        """Run a short call that writes, and return its result. Writes run in order."""
        loop = _own_loop()
        return await asyncio.wrap_future(_submit(self._writer, call), loop=loop)

    async def work(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Run a long call after earlier long calls, and return its result. Its `progress` is called on the loop.

        If the caller is cancelled, the call ends at its next `progress` report.
        """
        work = self.begin(function, *args, **kwargs)
        try:
            return await asyncio.wrap_future(work.future)
        finally:
            work.stop(asyncio.CancelledError())

    def begin(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Work[T]:
        """Queue a long call, which runs after earlier long calls."""
        work = Work(self._worker, function, *args, **kwargs)
        self._works.add(work)
        work.future.add_done_callback(lambda _: self._works.discard(work))
        return work

    async def close(self, close_store: Callable[[], None]) -> None:
        """Complete pending writes, stop long work, call `close_store`, and end the threads.

        All this happens even if the caller is cancelled.
        """
        loop = _own_loop()
        if self._closing is None:
            self._closing = closing = Future[None]()
            closing.set_running_or_notify_cancel()  # from now on, cancelling the caller does not cancel `closing`
            threading.Thread(target=self._close, args=(close_store, closing), name="cablestore-aio-close").start()
        await asyncio.wrap_future(self._closing, loop=loop)

    def _close(self, close_store: Callable[[], None], closing: Future[None]) -> None:
        try:
            for work in tuple(self._works):
                work.stop(StoreClosedError("the store was closed before this call ended"))
            self._writer.shutdown()
            close_store()
            self._reader.shutdown()
            self._worker.shutdown()
        except BaseException as error:  # noqa: BLE001 - the tasks that await closing raise it
            closing.set_exception(error)
        else:
            closing.set_result(None)

    def leave(self) -> None:
        """Let each thread end when its calls are complete. Do not wait for that."""
        for executor in (self._reader, self._writer, self._worker):
            executor.shutdown(wait=False)


class Work(Generic[T]):
    """Long call in a thread, which can be stopped at its next progress report."""

    def __init__(self, executor: ThreadPoolExecutor, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> None:
        signature = inspect.signature(function)
        given = signature.bind(*args, **kwargs)
        self._loop = _own_loop()
        given.apply_defaults()  # `signature` shows the named arguments of a `partial` as defaults
        self._report: Progress = given.arguments.get("progress", no_progress)
        self._reason: BaseException | None = None
        if "progress" in signature.parameters:
            check(progress=self._report)
            given.arguments["progress"] = self._progress
        self._call: Final = partial(function, *given.args, **given.kwargs)
        self.future: Final = _submit(executor, self._run)

    def stop(self, reason: BaseException) -> None:
        """Raise `reason` in the call at its next progress report. If the call has not begun, raise it instead."""
        self._reason = reason

    def _run(self) -> T:
        self._check()
        return self._call()

    def _check(self) -> None:
        if self._reason is not None:
            raise self._reason

    def _progress(self, count: int) -> None:
        self._check()
        if self._report is not no_progress:
            with suppress(RuntimeError):  # the loop was closed, so progress is not needed
                self._loop.call_soon_threadsafe(self._report, count)


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end, even if the caller is cancelled meanwhile. Then raise the caller's CancelledError."""
    task, cancellation = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancellation = error
    task.result()
    if cancellation is not None:
        raise cancellation


def _own_loop() -> asyncio.AbstractEventLoop:
    """Return the loop of the calling task. Raises CableStoreError outside a task, before the call begins."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    if task is None:
        raise CableStoreError("this can only be awaited in an asyncio task. Outside a task, use CableStore in a thread")
    return task.get_loop()


def _submit(executor: ThreadPoolExecutor, call: Callable[[], T]) -> Future[T]:
    try:
        return executor.submit(call)
    except RuntimeError:
        raise StoreClosedError("the store is closed") from None
