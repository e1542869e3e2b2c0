"""Work in a thread, so that Ctrl-C ends the wait for it and not the work."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread
from typing import Final, TypeVar

_LOOK_S: Final = 0.5
"""How often a wait ends and begins again."""

T = TypeVar("T")


class ThreadResult(Future[T]):
    """The coming result of work in `thread`. It cannot be cancelled."""

    thread: Thread


def in_thread(work: Callable[[], T], name: str = "cablestore-work") -> ThreadResult[T]:
    """Run `work` in a thread that no end of the program waits for."""
    answer: ThreadResult[T] = ThreadResult()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            answer.set_exception(error)

    answer.thread = Thread(target=run, name=name, daemon=True)
    answer.thread.start()
    return answer


def awaited(answer: Future[T]) -> T:
    """Return the result of `in_thread`, or raise its error. Ctrl-C ends the wait at any time.

    The system may give Ctrl-C to any thread. Python raises it in the main thread, but there ends a wait only if that
    thread got it.
    """
    while not answer.done():
        wait([answer], _LOOK_S)
    return answer.result()
