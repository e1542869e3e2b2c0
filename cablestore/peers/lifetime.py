"""One run of a node on its event loop: calls, tasks, and a shutdown that a cancellation does not interrupt."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from logging import Logger
from typing import Any, Final, ParamSpec, TypeVar

from cablestore.errors import NodeError, StoreClosedError

P = ParamSpec("P")
T = TypeVar("T")

NOT_RUNNING: Final = "this node is not running. Call it inside its `async with` block"


class Lifetime:
    """One run of a node. Use it on the node's loop, in the thread of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, log: Logger) -> None:
        self.loop: Final = loop
        self.log: Final = log
        self._thread_id: Final = threading.get_ident()
        self.tasks: Final[set[asyncio.Task[Any]]] = set()
        """Unfinished tasks of the node, and unfinished calls of the program."""
        self._is_ending = False
        self._cancellation: asyncio.CancelledError | None = None
        """The cancellation of the caller that waits for the shutdown."""
        self._errors: list[Exception] = []

    # --- calls ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise NodeError unless the node runs and the caller is on its loop."""
        self.check_loop()
        if self._is_ending or self.loop.is_closed():
            raise NodeError(NOT_RUNNING)

    def check_loop(self) -> None:
        """Raise NodeError if the caller is not on the loop of the node.

        While no loop runs in the caller's thread, a call is permitted in the thread of the node, or if the node's loop
        does not run: a program may alternate between two loops.
        """
        here = running_loop()
        if here is self.loop or (here is None and (not self.loop.is_running() or self._is_own_thread())):
            return
        raise NodeError(
            "this node runs on another event loop. Call it there: with loop.call_soon_threadsafe, or with "
            "asyncio.run_coroutine_threadsafe for coroutines"
        )

    def _is_own_thread(self) -> bool:
        return threading.get_ident() == self._thread_id

    async def call(self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function for the program, and return its result. Raises NodeError if the node ends first."""
        check_task()
        self.check()
        task = self._begin(function(*args, **kwargs))
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._is_ending and task.cancelled() and not (caller and caller.cancelling()):
                raise NodeError("the node stopped during this call") from None
            raise

    # --- tasks ---------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task of the node until it is done or the node ends. Its error is logged."""
        task = self._begin(work)
        task.add_done_callback(self._report)
        return task

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def _report(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._is_ending and not _is_of_closed_store(error):
            self.log.error("a task failed", exc_info=error)

    # --- the end -------------------------------------------------------------------------------

    def end(self) -> None:
        """Reject further calls."""
        self._is_ending = True

    def cancel_tasks(self) -> None:
        """Cancel all tasks, including the calls of the program."""
        for task in self.tasks:
            task.cancel()

    async def tasks_ended(self) -> None:
        """Wait until all tasks have ended."""
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def finish(self, work: Awaitable[object], *, may_hurry: bool = False) -> None:
        """Await a step of the shutdown despite any cancellation of the caller, and keep its error for `conclude`.

        If `may_hurry` is True, the step only gives peers time, and is cancelled with the caller.
        """
        step = asyncio.ensure_future(work)
        if may_hurry and self._cancellation is not None:
            step.cancel()
        while not step.done():
            try:
                await asyncio.wait({step})
            except asyncio.CancelledError as error:
                self._cancellation = error
                if may_hurry:
                    step.cancel()
        try:
            step.result()
        except asyncio.CancelledError:  # by this node, or by an asyncio.run that cancels all tasks
            pass
        except Exception as error:  # noqa: BLE001 - other steps must still run
            self._errors.append(error)

    def conclude(self) -> None:
        """Raise the CancelledError or the first error of the shutdown, if there is one."""
        errors, self._errors = [self._cancellation, *self._errors], []
        for error in filter(None, errors):
            raise error


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, None if none does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def check_task() -> None:
    """Raise NodeError unless the caller is in an asyncio task. A trio task, for example, cannot await the shutdown."""
    if running_loop() is None or asyncio.current_task() is None:
        raise NodeError(
            "a node requires a task on a running asyncio event loop. Call it in a coroutine that asyncio runs"
        )


def _is_of_closed_store(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_of_closed_store, error.exceptions))
    return isinstance(error, StoreClosedError)
