"""The store: write, read and follow posts, check and rebuild the database, and return to an earlier database."""

from typing import TYPE_CHECKING

from cablestore.index.check import CheckReport, Problem
from cablestore.index.leveldb import Tuning
from cablestore.index.rebuild import RebuildReport
from cablestore.lazy import loader
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

__getattr__ = loader(__name__, {"closed": "ClosedStore Generation"})
