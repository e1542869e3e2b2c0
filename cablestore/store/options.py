"""Less common options of an open store."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import NoneType

from cablestore.arguments import check, check_given, check_instance
from cablestore.index.leveldb import Tuning
from cablestore.index.view import Catalog
from cablestore.views import CATALOG


def system_clock_ms() -> int:
    """Return the current time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Options of `CableStore.open` and `CableStore.in_memory`."""

    catalog: Catalog = CATALOG
    """Views to maintain: `cablestore.views.CATALOG`, or `CATALOG.extended([...])` with custom views."""
    allow_missing_views: bool = False
    """If True, a store with views that `catalog` lacks can be opened and read, and writes raise OpenError."""
    moderated: bool = True
    """If False, moderation posts are stored but ignored: nothing is hidden, dropped or blocked."""
    clock: Callable[[], int] = system_clock_ms
    """Function that returns milliseconds since 1970."""
    verify_threads: int | None = None
    """Number of threads that verify signatures, None for one thread per core."""
    tuning: Tuning = field(default_factory=Tuning)
    """Memory and file sizes of LevelDB. Stores in memory ignore it."""

    def __post_init__(self) -> None:
        """Raise ArgumentError for a value of the wrong type."""
        check_instance("catalog", self.catalog, Catalog)
        check_instance("tuning", self.tuning, Tuning)
        check_instance("verify_threads", self.verify_threads, (int, NoneType))
        check_given(verify_threads=self.verify_threads)
        check(allow_missing_views=self.allow_missing_views, moderated=self.moderated, clock=self.clock)
