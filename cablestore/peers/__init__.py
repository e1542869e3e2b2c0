"""A node: a store among peers. Sockets, threads, timers and the clock are here; what is said is in pure modules.

`Node` answers peers, follows channels, forwards requests of legacy peers, and stores what peers send.

    node        life, listening, connecting, fetching once         parts       what a node is made of
    peer_events who is connected, and what changes
    context     services of a node, given to all its parts         threads     the threads that use the store
    link        what the connections of both ports share           connection  one Cable connection
    listener    one port: listen, connect, stay connected          cable_port  where the events of a peer go
    serving     requests of peers: answered, forwarded, kept live  answering   the answers to one peer
    sync        what a node asks of its peers                      fetch       how it gets the posts that they offer
    dialling    the pauses between attempts to connect             silence     when a peer is asked for a sign of life
    reachability  what a change of the network causes              delivery    what the system knows of a connection
    accepting   listening sockets                                  descriptors file descriptors that are left to others
    node_ids    connections to one node, and to this node itself   clock_watch what a clock that is wrong or set means
    relay       forwarding of legacy requests                      live, live_changes  what live requests are sent
    invitation  what somebody needs to join, on one line
    reconciler  which stores are reconciled with, and when         reconcile_port  the port without Cable
    in_step     which peers have the same posts as this store      sync_state  what is known to be complete
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
