"""Pauses of the garbage collector end, even if several threads pause it concurrently."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from cablestore.gc_pause import gc_paused

ROUNDS = 40_000

REPORTING_AT_EXIT = """
import atexit, gc
from cablestore.__main__ import main
atexit.register(lambda: print(gc.isenabled(), gc.get_freeze_count() > 10_000))
main()
"""


@pytest.fixture(autouse=True)
def eager_switches() -> Iterator[None]:
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval_s)
    gc.enable()


@pytest.mark.parametrize("first", [0, 1])
def test_the_collector_is_enabled_after_overlapping_pauses(first: int) -> None:
    pauses = [ExitStack(), ExitStack()]
    for pause in pauses:
        pause.enter_context(gc_paused())
    assert not gc.isenabled()
    pauses[first].close()
    pauses[1 - first].close()
    assert gc.isenabled()


@pytest.mark.thorough
def test_the_collector_is_enabled_after_concurrent_pauses_of_threads() -> None:
    def pause() -> None:
        for _ in range(ROUNDS):
            with gc_paused():
                pass

    for _ in range(10):
        threads = [threading.Thread(target=pause) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert gc.isenabled()


def test_a_collector_that_the_program_disabled_stays_disabled() -> None:
    gc.disable()
    with gc_paused(), gc_paused():
        assert not gc.isenabled()
    assert not gc.isenabled()
    gc.enable()
    with gc_paused():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_command_starts_without_the_collector_and_runs_with_it() -> None:
    command = [sys.executable, "-c", REPORTING_AT_EXIT, "completion", "bash"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "True True"
