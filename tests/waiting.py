"""How tests wait: for a condition, never for a time. One limit for all of them, so generous that only a hang reaches it."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 120
_LOOK_S = 0.01


def wait_until(is_so: Callable[[], object], otherwise: Callable[[], object] | str = "") -> None:
    """Return when a condition holds. Fails after LIMIT_S, with what `otherwise` says."""
    end = time.monotonic() + LIMIT_S
    while not is_so():
        if time.monotonic() > end:
            what = otherwise if isinstance(otherwise, str) else otherwise()
            raise AssertionError(f"nothing after {LIMIT_S} s: {what or is_so}")
        time.sleep(_LOOK_S)
