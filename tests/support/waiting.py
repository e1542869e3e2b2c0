"""Waiting in tests: for a condition, never for a time.

All waits have the same limit, so long that only a hang reaches it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

LIMIT_S: Final = 300
_POLL_S: Final = 0.01

T = TypeVar("T")


def wait_until(is_so: Callable[[], T], otherwise: Callable[[], object] | str = "") -> T:
    """Return the value of a condition when it is true.

    Fails after LIMIT_S with `otherwise` in the message.
    """
    end = time.monotonic() + LIMIT_S
    while not (found := is_so()):
        if time.monotonic() > end:
            what = otherwise if isinstance(otherwise, str) else otherwise()
            raise AssertionError(f"nothing after {LIMIT_S} s: {what or is_so}")
        time.sleep(_POLL_S)
    return found
