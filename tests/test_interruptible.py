"""Ctrl-C interrupts waits."""

from __future__ import annotations

import signal
from concurrent.futures import Future
from contextlib import ExitStack
from threading import Event, Thread, get_ident

import pytest
from ctrl_c import interrupt_often
from remote_stores import remote_of
from waiting import LIMIT_S

from cablestore import CableStore
from cablestore.interruptible import awaited, in_thread


def test_a_wait_returns_the_result_or_raises_the_error() -> None:
    assert awaited(in_thread(lambda: 7)) == 7
    with pytest.raises(ZeroDivisionError):
        awaited(in_thread(lambda: 1 // 0))


def test_ctrl_c_ends_a_wait_even_if_another_thread_receives_it() -> None:
    class Answer(Future[str]):
        def __init__(self) -> None:
            super().__init__()
            self.is_waited_for = Event()

        def done(self) -> bool:
            self.is_waited_for.set()
            return super().done()

    answer = Answer()

    def interrupt() -> None:
        if answer.is_waited_for.wait(LIMIT_S):
            signal.pthread_kill(get_ident(), signal.SIGINT)

    interrupting = Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a library may have left another handler
    try:
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            awaited(answer)
    finally:
        signal.signal(signal.SIGINT, before)
    interrupting.join()
    answer.set_result("the work continued")
    assert awaited(answer) == "the work continued"


def test_ctrl_c_at_any_time_of_a_remote_call_keeps_the_connection_usable() -> None:
    with CableStore.in_memory() as own, ExitStack() as stack:
        store = stack.enter_context(remote_of(own))
        interrupt_often(lambda: store.topic("c"), 300)
        assert in_thread(lambda: store.post("c", "after")).result(LIMIT_S).hash


@pytest.mark.parametrize("is_remote", [False, True])
def test_ctrl_c_at_any_time_releases_the_locks_of_a_store(*, is_remote: bool) -> None:
    """Another thread writes after a thread was interrupted while it entered a lock that both need."""
    with CableStore.in_memory() as own, ExitStack() as stack:
        store = stack.enter_context(remote_of(own)) if is_remote else own

        def watch_briefly() -> None:
            unwatch = store.watch(lambda: None)
            unwatch()

        interrupt_often(watch_briefly, 300)
        assert in_thread(lambda: store.post("c", "after")).result(LIMIT_S).hash
