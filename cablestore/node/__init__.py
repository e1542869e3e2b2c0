"""A node: a store among peers. Sockets, threads, timers and the clock are here; what is said stands in the pure modules.

`Node` answers peers, follows channels, forwards requests of legacy peers and stores what it is sent. `settings` has
what can be set, `wire` one connection, `workers` the threads that touch the store, `sync` what a node asks for.
"""

from cablestore.node.node import Node
from cablestore.node.settings import Address, NodeSettings
from cablestore.node.sync import SyncReport

__all__ = ["Address", "Node", "NodeSettings", "SyncReport"]
