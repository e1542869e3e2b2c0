"""The store of the views: write, read, follow, look after."""

from cablestore.store.store import CableStore

__all__ = ["CableStore"]
