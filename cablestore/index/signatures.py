"""Verification of signatures on several threads.

libsodium runs without Python's lock, so two cores verify twice as fast as one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from cablestore.protocol.crypto import VERIFIES_WITHOUT_LOCK, are_signed

MAX_THREADS: Final = 8
"""More threads than this lose more time waiting for Python's lock between signatures than they gain."""

_LARGEST_SHARE_POSTS: Final = 25 if VERIFIES_WITHOUT_LOCK else 1
"""Maximum number of posts that a thread takes at a time: a millisecond of work that needs no lock."""


class VerifyingBatch:
    """Posts being verified.

    Each free thread takes the next share; the thread that waits for the results does so too.
    """

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
        """Take the next share.

        Shares get smaller towards the end, so that all threads finish at about the same time.
        """
        with self._taking:
            start = self._taken
            left = len(self._raws) - start
            self._taken += min(left, max(1, min(left // (2 * self._threads), _LARGEST_SHARE_POSTS)))
            return range(start, self._taken)

    def results(self) -> Sequence[bool]:
        """Return for each post whether its signature is valid, in the order of the posts."""
        if not self.helpers:
            return are_signed(self._raws)
        self.work()
        for helper in self.helpers:
            helper.result()
        return self._found


class SignatureVerifier:
    """Pool of threads that verify. It starts with the first batch that needs it and ends with `close`. Thread-safe."""

    def __init__(self, threads: int | None = None) -> None:
        self._helpers = min(threads or os.cpu_count() or 1, MAX_THREADS) - 1
        self._pool: ThreadPoolExecutor | None = None
        self._starting = threading.Lock()

    def start(self, raws: list[bytes]) -> VerifyingBatch:
        """Start to verify posts."""
        batch = VerifyingBatch(raws, self._helpers + 1)
        helpers = min(self._helpers, len(raws) - 1)
        if helpers > 0:
            with self._starting:
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(self._helpers, thread_name_prefix="cablestore-verify")
                batch.helpers = [self._pool.submit(batch.work) for _ in range(helpers)]
        return batch

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
