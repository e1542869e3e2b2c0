"""Ctrl-C interrupts waits."""

from __future__ import annotations

import signal
from concurrent.futures import Future
from threading import Event, Thread, get_ident

import pytest
from waiting import LIMIT_S

from cablestore.interruptible import awaited, in_thread


def test_a_result_and_an_error_come_out() -> None:
    assert awaited(in_thread(lambda: 7)) == 7
    with pytest.raises(ZeroDivisionError):
        awaited(in_thread(lambda: 1 // 0))


def test_ctrl_c_ends_a_wait_though_another_thread_gets_it() -> None:
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
    answer.set_result("the work went on")
    assert awaited(answer) == "the work went on"
