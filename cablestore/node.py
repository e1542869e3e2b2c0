"""The old name of `cablestore.peers`, importable until 1.0."""

import warnings

from cablestore.peers import Address, Node, NodeSettings, ReconcileReport, SyncReport

__all__ = ["Address", "Node", "NodeSettings", "ReconcileReport", "SyncReport"]

warnings.warn("cablestore.node is now cablestore.peers", DeprecationWarning, stacklevel=2)
