"""Store of the views: write, read, follow; check and rebuild it, and go back to an earlier database."""

from cablestore.index.check import CheckReport, Problem
from cablestore.index.leveldb import Tuning
from cablestore.index.rebuild import RebuildReport
from cablestore.store.closed import ClosedStore, Generation
from cablestore.store.store import CableStore

__all__ = [
    "CableStore",
    "CheckReport",
    "ClosedStore",
    "Generation",
    "Problem",
    "RebuildReport",
    "Tuning",
]
