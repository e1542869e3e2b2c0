"""Nodes, which connect a store with peers: sockets, threads and timers. `cablestore.protocol` is the part without I/O.

`Node` answers peers, follows channels, forwards requests of legacy peers, and stores the posts that peers send.

    node                start and stop, listening, connecting, fetching once
    parts               the parts of a node
    peer_events         connected peers, and events about them
    context             services that all parts of a node share
    threads             the threads that use the store
    link                common base of the connections of both ports
    connection          one Cable connection
    listener            one port: listen, connect, stay connected
    cable_port          dispatch of a peer's events
    serving             requests of peers: answered, forwarded, kept live
    answering           the answers to one peer
    sync                requests to peers
    fetch               fetching of the posts that peers offer
    dialling            the pauses between attempts to connect
    silence             when to probe a peer
    reachability        reactions to changes of the network
    peer_control, bans  disconnecting and banning peers
    health              states of a process that serves a store
    status_pages        health and metrics over HTTP
    delivery            acknowledgements of a connection
    accepting           listening sockets
    descriptors         file descriptors reserved for other uses
    node_ids            connections to one node, and to this node itself
    clock_watch         checks of the clock
    relay               forwarding of legacy requests
    live, live_changes  changes for live requests
    invitation          the data for joining a cabal, on one line
    reconciler          when the node reconciles, and with which stores
    reconcile_port      the separate port for reconciliation
    in_step             which peers have the same posts as this store
    sync_state          channels that are known to be complete
"""

from cablestore.peers.address import Address
from cablestore.peers.dialling import DialState
from cablestore.peers.invitation import Invitation
from cablestore.peers.node import Node
from cablestore.peers.peer_events import (
    Peer,
    PeerConnected,
    PeerEvent,
    PeerEvents,
    PeerEventsMissed,
    PeerInStep,
    PeerLost,
    PeerSilent,
    PeerUnreachable,
)
from cablestore.peers.report import ReconcileReport, SyncReport
from cablestore.peers.settings import NodeSettings

__all__ = [
    "Address",
    "DialState",
    "Invitation",
    "Node",
    "NodeSettings",
    "Peer",
    "PeerConnected",
    "PeerEvent",
    "PeerEvents",
    "PeerEventsMissed",
    "PeerInStep",
    "PeerLost",
    "PeerSilent",
    "PeerUnreachable",
    "ReconcileReport",
    "SyncReport",
]
