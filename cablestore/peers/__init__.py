"""A node: a store among peers. Sockets, threads, timers and the clock are here; what is said stands in the pure modules.

`Node` answers peers, follows channels, forwards requests of legacy peers and stores what it is sent. `settings` has
what can be set, `wire` one connection, `workers` the threads that touch the store, `sync` what a node asks for, `fetch`
how it gets what peers offer; `reconciling` keeps in step with stores like this one, over Cable or `own_port`.
"""

from cablestore.peers.node import Node
from cablestore.peers.report import ReconcileReport, SyncReport
from cablestore.peers.settings import Address, NodeSettings

__all__ = ["Address", "Node", "NodeSettings", "ReconcileReport", "SyncReport"]
