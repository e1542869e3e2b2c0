"""Waiting in tests: for a condition, never for a time.

All waits have the same limit, so long that only a hang reaches it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

LIMIT_S: Final = 300
_POLL_S: Final = 0.01
_MAX_POLL_S: Final = 0.1

T = TypeVar("T")


def wait_until(is_so: Callable[[], T], otherwise: Callable[[], object] | str = "") -> T:
    """Return the value of a condition when it is true.

    Fails after LIMIT_S with `otherwise` in the message.
    """
    end = time.monotonic() + LIMIT_S
    while True:
        begin_s = time.monotonic()
        if found := is_so():
            return found
        if begin_s > end:
            what = otherwise if isinstance(otherwise, str) else otherwise()
            raise AssertionError(f"nothing after {LIMIT_S} s: {what or is_so}")
        time.sleep(pause_s(begin_s))


def pause_s(begin_s: float) -> float:
    """Return the pause after a check that began at this time.

    It is as long as the check: some conditions run commands, and what they wait for needs the processor too.
    """
    return min(max(_POLL_S, time.monotonic() - begin_s), _MAX_POLL_S)
