"""Ids of nodes, which identify connections to this node itself, and second connections to a peer.

A node has a random id while it runs. When it stays connected to another cablestore, both sides send their ids in frames
of reconciliation. Other peers do not receive them. An address alone proves nothing: one node may have several
addresses, and a forwarded port or a proxy hides them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from cablestore.peers.connection import Connection
from cablestore.peers.link import ITSELF, PeerLink
from cablestore.reconcile.messages import NODE

_SIZE_BYTES: Final = 16
TWICE: Final = "the peer is already connected, under another address or in the other direction"
"""Reason for the end of a connection."""


class NodeIds:
    """The id of a node, and the ids of its peers. Use it on the loop."""

    def __init__(self, links: Iterable[PeerLink]) -> None:
        """`links` are the connections of both ports."""
        self._links = links
        self._own: Final = os.urandom(_SIZE_BYTES)

    def keep(self, link: PeerLink) -> None:
        """Record that a connection is kept. End it if another kept connection has the same remote address and port."""
        link.is_kept = True
        others = (known for known in self._links if known.is_kept and known is not link and known.duplicate is None)
        for known in others:
            if (known.port_name, known.ends[1]) == (link.port_name, link.ends[1]):
                self._end(link, known)
                return

    def announce(self, link: PeerLink) -> None:
        """Send this node's id."""
        link.send_frames([NODE + self._own])

    def received(self, link: PeerLink, frame: bytes) -> None:
        """Record the id of the peer's node, and end redundant connections."""
        if len(frame) != len(NODE) + _SIZE_BYTES:
            return  # from a later version
        link.node_id = frame[len(NODE) :]
        if not link.is_ours:
            self.announce(link)
        if link.node_id == self._own:
            link.end(ITSELF)
            return
        needless, kept = self._needless(link)
        for known in needless:
            self._end(known, kept)

    def _needless(self, link: PeerLink) -> tuple[list[PeerLink], PeerLink]:
        """Return the redundant connections to the node of `link`, and the connection that replaces them.

        Both sides choose the same connection without a message. If both nodes connected, connections that the node with
        the smaller id began remain. Of several connections in one direction, the oldest one remains.
        """
        same = [known for known in self._links if known.duplicate is None and _are_alike(known, link)]
        ours = sorted((known for known in same if known.is_ours and known.is_kept), key=lambda known: known.number)
        theirs = [known for known in same if not known.is_ours and any(_may_replace(known, own) for own in ours)]
        if theirs and self._own > link.node_id:
            return ours, theirs[0]
        return ours[1:], (ours or [link])[0]

    @staticmethod
    def _end(link: PeerLink, other: PeerLink) -> None:
        link.duplicate = other
        link.end(TWICE)

    def leads_here(self, connection: Connection) -> bool:
        """Return True, and close both ends, if this node itself began an incoming connection.

        Then both ends have the same first request. Its id is random, so another node's first request has another id.
        """
        if connection.is_ours or connection.is_of_another_node:
            return False
        _, heard = connection.session.first_ids
        connection.is_of_another_node = bool(heard)
        for known in self._links:
            if heard and isinstance(known, Connection) and known.is_ours and known.session.first_ids[0] == heard:
                for end in (known, connection):
                    end.close(ITSELF)
                return True
        return False


def _are_alike(one: PeerLink, other: PeerLink) -> bool:
    """Return True if two connections lead to the same node. With a cabal key, a peer cannot use the id of another user."""
    is_same = one.node_id == other.node_id and one.remote_static == other.remote_static
    return is_same and one.port_name == other.port_name


def _may_replace(theirs: PeerLink, ours: PeerLink) -> bool:
    """Return True if an incoming connection may replace a connection that this node began.

    Without a cabal key, any peer can claim any id. Such a peer must not be able to end connections that the user wants.
    """
    return theirs.remote_static is not None or theirs.host == ours.host
