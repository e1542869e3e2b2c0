"""Store of the views: write, read, follow; check and rebuild it, and go back to an earlier database."""

from typing import TYPE_CHECKING, Any

from cablestore.index.check import CheckReport, Problem
from cablestore.index.leveldb import Tuning
from cablestore.index.rebuild import RebuildReport
from cablestore.store.store import CableStore

if TYPE_CHECKING:
    from cablestore.store.closed import ClosedStore, Generation

__all__ = [
    "CableStore",
    "CheckReport",
    "ClosedStore",
    "Generation",
    "Problem",
    "RebuildReport",
    "Tuning",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cablestore.store import closed  # noqa: PLC0415 - opening a store does without it

    return getattr(closed, name)
