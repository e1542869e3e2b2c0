"""Verifying signatures on several threads: libsodium works outside of Python's lock, so two cores verify twice as fast."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from cablestore.protocol.crypto import VERIFIES_WITHOUT_LOCK, are_signed

MAX_THREADS: Final = 8
"""Beyond this the threads wait for Python's lock between two signatures more than they gain."""

_LARGEST_SHARE_POSTS: Final = 25 if VERIFIES_WITHOUT_LOCK else 1
"""Posts that a thread takes at a time, at most: a millisecond of work that needs no lock."""


class VerifyingBatch:
    """Signatures being verified. Whoever is free takes the next share, the thread that waits for the results too."""

    def __init__(self, raws: list[bytes], threads: int) -> None:
        self._raws = raws
        self._found = [False] * len(raws)
        self._threads = threads
        self._taken = 0
        self._taking = threading.Lock()
        self.helpers: list[Future[None]] = []

    def work(self) -> None:
        """Verify until no share is left."""
        while share := self._take():
            self._found[share.start : share.stop] = are_signed(self._raws[share.start : share.stop])

    def _take(self) -> range:
        """Take the next share. The less is left the smaller it is, so that all threads are done at the same time."""
        with self._taking:
            start = self._taken
            left = len(self._raws) - start
            self._taken += min(left, max(1, min(left // (2 * self._threads), _LARGEST_SHARE_POSTS)))
            return range(start, self._taken)

    def results(self) -> Sequence[bool]:
        """Return for each post whether its signature is right, in the order of the posts."""
        if not self.helpers:
            return are_signed(self._raws)
        self.work()
        for helper in self.helpers:
            helper.result()
        return self._found


class SignatureVerifier:
    """Threads that verify. They start with the first batch that is worth them and end with `close`. Any thread may use them."""

    def __init__(self, threads: int | None = None) -> None:
        self._helpers = min(threads or os.cpu_count() or 1, MAX_THREADS) - 1
        self._pool: ThreadPoolExecutor | None = None
        self._starting = threading.Lock()

    def start(self, raws: list[bytes]) -> VerifyingBatch:
        """Begin to verify posts."""
        verifying = VerifyingBatch(raws, self._helpers + 1)
        helpers = min(self._helpers, len(raws) - 1)
        if helpers > 0:
            with self._starting:
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(self._helpers, thread_name_prefix="cablestore-verify")
                verifying.helpers = [self._pool.submit(verifying.work) for _ in range(helpers)]
        return verifying

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
