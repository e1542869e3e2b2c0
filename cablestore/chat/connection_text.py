"""Short description of a node's connections: the connected peers, or the reason for a failure. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cablestore.plurals import counted
from cablestore.remote.node import NodeState, PeerFailure, PeerState

OFFLINE: Final = "offline"
"""State of a cabal without a node."""
_CAUSES: Final = (
    ("handshake message", "wrong cabal key at {}"),
    ("this node has none", "cabal key missing here? {} closed the connection"),
    ("cabal key", "wrong cabal key? {} closed the connection"),
    ("does not answer", "no answer from {}"),
    ("Connect call failed", "no peer at {}"),
    ("refused", "no peer at {}"),
)
"""Parts of logged reasons, and the client's shorter messages. The first matching part applies. Messages begin with
their important words, because a narrow screen truncates them."""


def connection_text(node: NodeState | None) -> str:
    """Return the state of a node's connections."""
    if node is None:
        return OFFLINE
    found = _peers_text(node.peers) if node.peers else _failure_text(node.failures)
    encryption = ", not encrypted" if node.cabal_key is None else ""
    return (found or ("connecting" if node.connect else "no peers yet")) + encryption


def _failure_text(failures: Sequence[PeerFailure]) -> str:
    more = f", and {len(failures) - 1} more" if len(failures) > 1 else ""
    return f"not connected: {_cause(failures[0])}{more}" if failures else ""


def _peers_text(peers: Sequence[PeerState]) -> str:
    number = counted(len(peers), "peer")
    silent = sum(peer.no_answer_s > 0 for peer in peers)
    if silent:
        return f"{number}, {silent} not answering"
    return number + (", in step" if all(peer.is_in_step is True for peer in peers) else "")


def _cause(failure: PeerFailure) -> str:
    address = failure.address
    found = next((text for part, text in _CAUSES if part in failure.reason), None)
    if found is not None:
        return found.format(address)
    reason = failure.reason.removeprefix(f"cannot connect to {address}: ")
    return f"{address}: {reason}"
