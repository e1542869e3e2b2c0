"""Work in a thread, so that Ctrl-C interrupts the wait for it but not the work."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread
from typing import Final, TypeVar

_POLL_S: Final = 0.5
"""Interval at which a wait is restarted."""

T = TypeVar("T")


class ThreadResult(Future[T]):
    """Future result of work in `thread`. It cannot be cancelled."""

    thread: Thread


def in_thread(work: Callable[[], T], name: str = "cablestore-work") -> ThreadResult[T]:
    """Run `work` in a daemon thread, for which the exit of the program does not wait."""
    answer: ThreadResult[T] = ThreadResult()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where the result is read
            answer.set_exception(error)

    answer.thread = Thread(target=run, name=name, daemon=True)
    answer.thread.start()
    return answer


def awaited(answer: Future[T]) -> T:
    """Return the result of `in_thread`, or raise its error. Ctrl-C ends the wait at any time.

    The system may deliver Ctrl-C to any thread. Python raises it in the main thread, but interrupts its wait only if
    that thread received the signal.
    """
    while not answer.done():
        wait([answer], _POLL_S)
    return answer.result()
