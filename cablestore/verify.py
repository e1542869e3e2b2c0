"""Verifying signatures on several threads: libsodium works outside of Python's lock, so two cores verify twice as fast."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from cablestore.crypto import is_signed

MAX_THREADS: Final = 8
"""Beyond this the threads wait for Python's lock between two signatures more than they gain."""

_SHARE_POSTS: Final = 1
"""Posts that a thread takes at a time: half a millisecond of work."""


class Verifying:
    """Signatures being verified. Whoever is free takes the next share, the thread that waits for the results too."""

    def __init__(self, raws: list[bytes]) -> None:
        self._raws = raws
        self._found = [False] * len(raws)
        self._shares = deque(range(0, len(raws), _SHARE_POSTS))
        self.helpers: list[Future[None]] = []

    @property
    def shares_left(self) -> int:
        """How many shares nobody has taken yet."""
        return len(self._shares)

    def work(self) -> None:
        """Verify until no share is left."""
        while True:
            try:
                start = self._shares.popleft()
            except IndexError:
                return
            for index in range(start, min(start + _SHARE_POSTS, len(self._raws))):
                self._found[index] = is_signed(self._raws[index])

    def results(self) -> list[bool]:
        """Return for each post whether its signature is right, in the order of the posts."""
        self.work()
        for helper in self.helpers:
            helper.result()
        return self._found


class Verifier:
    """Threads that verify. They start with the first batch that is worth them and end with `close`."""

    def __init__(self, threads: int | None = None) -> None:
        self._helpers = min(threads or os.cpu_count() or 1, MAX_THREADS) - 1
        self._pool: ThreadPoolExecutor | None = None

    def start(self, raws: list[bytes]) -> Verifying:
        """Begin to verify posts."""
        verifying = Verifying(raws)
        helpers = min(self._helpers, verifying.shares_left - 1)
        if helpers > 0:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._helpers, thread_name_prefix="cablestore-verify")
            verifying.helpers = [self._pool.submit(verifying.work) for _ in range(helpers)]
        return verifying

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
