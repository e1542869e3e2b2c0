"""Removal of posts that are older than the settings keep, in small steps, while the store is in use.

As with `prune --before`, texts of any author and superseded state are removed. Deletions, actions and the latest state
are kept. After an interruption, the next removal continues, because it reads the remaining old posts.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from cablestore import limits
from cablestore.errors import StoreClosedError
from cablestore.index.batches import batches
from cablestore.index.verdict import Verdict
from cablestore.interruptible import in_thread
from cablestore.store.keep_ages import KeepAges
from cablestore.store.options import system_clock_ms
from cablestore.store.retention import older_than
from cablestore.store.store import CableStore

_LOG: Final = logging.getLogger("cablestore.node")


class Retention:
    """Regular removal of old posts of an open store."""

    def __init__(self, store: CableStore, *, clock: Callable[[], int] = system_clock_ms) -> None:
        self._store = store
        self._clock = clock
        self._ages = KeepAges()
        self._changed = asyncio.Event()
        self._stopped = threading.Event()
        self._failure = ""
        self.removed = 0
        """Number of posts removed since the start."""
        self._compacted_at = 0
        """`removed` at the last compaction."""

    def change(self, ages: KeepAges) -> None:
        """Replace the ages. A removal in progress ends after its present step."""
        if ages != self._ages:
            self._ages = ages
            self._changed.set()

    async def run(self) -> None:
        """Remove old posts at regular intervals, until this is cancelled."""
        while True:
            self._changed.clear()
            if self._ages:
                await self._remove()
            with suppress(TimeoutError):
                async with asyncio.timeout(limits.RETENTION_EVERY_MS / 1000):
                    await self._changed.wait()

    async def _remove(self) -> None:
        self._stopped.clear()
        work = in_thread(self.remove_old, "cablestore-retention")
        try:
            removed = await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            self._stopped.set()
            await asyncio.to_thread(work.thread.join)  # until the step in progress ends
            raise
        except StoreClosedError:
            return
        except Exception as error:  # noqa: BLE001 - of any kind: the next removal may succeed
            if str(error) != self._failure:
                self._failure = str(error)
                _LOG.error("cannot remove old posts", extra={"reason": self._failure})
            return
        self._failure = ""
        if removed:
            _LOG.info("removed old posts", extra={"posts": removed})

    def remove_old(self) -> int:
        """Remove the posts that are too old now, unless the ages change or `run` is cancelled. Return the number removed.

        After each step, this waits `limits.RETENTION_PAUSE_RATIO` times as long as the step took, for other requests.
        """
        now_ms, chosen = self._clock(), self._ages
        ages = chosen.of(self._store.dialect)
        removed = 0
        with self._store.snapshot() as state:
            old = older_than(state.reader, lambda channel: ages.oldest_ms(channel, now_ms))
            for batch in batches(old, len, limits.RETENTION_STEP_POSTS):
                began_s = time.monotonic()
                outcomes = self._store.discard(batch)
                found = sum(outcome.verdict is Verdict.DISCARDED for outcome in outcomes)
                removed += found
                self.removed += found
                if self._stopped.wait(limits.RETENTION_PAUSE_RATIO * (time.monotonic() - began_s)):
                    break
                if self._ages is not chosen:
                    break
        if removed and not self._stopped.is_set():
            self._free_space()
        return removed

    def _free_space(self) -> None:
        """Compact the store if `limits.RETENTION_COMPACT_SHARE` of its posts were removed since the last compaction.

        Otherwise only remove unused tables.
        """
        removed = self.removed - self._compacted_at
        kept = sum(self._store.stats().posts.values())
        if removed >= limits.RETENTION_COMPACT_SHARE * (kept + removed):
            self._store.compact()
            self._compacted_at = self.removed
        else:
            self._store.parts.engine.remove_unused_tables()
