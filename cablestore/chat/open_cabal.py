"""Cabal of a store that this process has open, for programs that run the client on their store."""

from __future__ import annotations

from cablestore.chat.cabal import Cabal
from cablestore.chat.hosting import HostedNode
from cablestore.chat.keeper import OpenStore
from cablestore.store.store import CableStore


class OpenCabal(Cabal):
    """Cabal whose store this process has open. `close` stops the node, then closes the store."""

    def __init__(self, store: CableStore, label: str, node: HostedNode | None = None) -> None:
        """Show an open store under a label."""
        super().__init__(OpenStore.here(store, node), label)
