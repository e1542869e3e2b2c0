"""Verification of signatures on several threads.

libsodium runs without Python's lock, so two cores verify twice as fast as one. The threads of the extension never wait
for that lock. Without the extension, Python threads are used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final

from cablestore.forks import ProcessBound, bind
from cablestore.index.cores import usable_cores
from cablestore.protocol.crypto import EXTENSION, are_signed, is_signed

MAX_THREADS: Final = 8
"""Maximum number of threads. Without the extension, more threads would mostly wait for Python's lock."""

Results = Callable[[], Sequence[bool]]
"""A function that waits until posts are verified and returns, for each post, True if its signature is valid."""


class SignatureVerifier(ProcessBound):
    """Threads that verify signatures. They start with the first batch that needs them. Thread-safe."""

    def __init__(self, threads: int | None = None) -> None:
        self._helpers = min(threads or usable_cores(), MAX_THREADS) - 1
        self._pool: ThreadPoolExecutor | None = None
        self._starting = threading.Lock()
        self.is_concurrent: Final = EXTENSION is not None and self._helpers > 0
        """True if a batch is verified at full speed while the thread that started it runs Python."""
        bind(self)

    def start(self, raws: list[bytes], *, ahead: bool = False) -> Results:
        """Start to verify the posts `raws`. Return a function for the results. The thread that calls it helps.

        Set `ahead` if that thread does other work first. Without `ahead`, it verifies a single post itself, because
        waking another thread takes longer.
        """
        helpers = min(self._helpers, len(raws) if ahead else len(raws) - 1)
        if helpers <= 0:
            return partial(are_signed, raws)
        if EXTENSION is not None:
            return partial(EXTENSION.results, EXTENSION.begin(tuple(raws), helpers + 1))
        with self._starting:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._helpers, thread_name_prefix="cablestore-verify")
            shared = _SharedPosts(raws)
            shared.helpers = [self._pool.submit(shared.work) for _ in range(helpers)]
        return shared.results

    def close(self) -> None:
        """End the Python threads. The threads of the extension continue to wait for batches of any verifier."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


class _SharedPosts:
    """Posts that Python threads share: each free thread takes the next post."""

    def __init__(self, raws: list[bytes]) -> None:
        self._raws = raws
        self._found = [False] * len(raws)
        self._places = iter(range(len(raws)))
        self._taking = threading.Lock()
        self.helpers: list[Future[None]] = []

    def work(self) -> None:
        """Verify posts until all are verified or being verified by other threads."""
        while (place := self._take()) is not None:
            self._found[place] = is_signed(self._raws[place])

    def _take(self) -> int | None:
        with self._taking:
            return next(self._places, None)

    def results(self) -> list[bool]:
        """Verify remaining posts in this thread, and wait for the other threads.

        Return for each post whether its signature is valid.
        """
        self.work()
        for helper in self.helpers:
            helper.result()
        return self._found
