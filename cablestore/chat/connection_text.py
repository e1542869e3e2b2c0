"""The state of a node's connections in a few words: who is connected, or why nobody is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cablestore.peers import Peer
from cablestore.peers.dialling import DialState

OFFLINE: Final = "offline"
"""The state of a cabal without a node."""
_CAUSES: Final = (
    ("handshake message", "wrong cabal key at {}"),
    ("this node has none", "no cabal key here? {} closed in the handshake"),
    ("cabal key", "wrong cabal key? {} closed in the handshake"),
    ("does not answer", "no answer from {}"),
    ("Connect call failed", "nobody there at {}"),
    ("refused", "nobody there at {}"),
)
"""Parts of the reasons that nodes log, and what the client says instead: the important words first, since a narrow
screen cuts the rest. The first part that fits counts."""


def connection_text(peers: Sequence[Peer], dials: Sequence[DialState], *, is_dialling: bool, is_encrypted: bool) -> str:
    """Return the state of the connections. `is_dialling` says that the node stays connected to addresses."""
    found = _peers_text(peers) if peers else _failure_text(dials)
    return (found or ("connecting" if is_dialling else "no peers yet")) + ("" if is_encrypted else ", not encrypted")


def _failure_text(dials: Sequence[DialState]) -> str:
    failed = [state for state in dials if state.reason]
    more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    return f"not connected: {_cause(failed[0])}{more}" if failed else ""


def _peers_text(peers: Sequence[Peer]) -> str:
    number = f"{len(peers)} peer{'' if len(peers) == 1 else 's'}"
    silent = sum(peer.no_answer_s > 0 for peer in peers)
    if silent:
        return f"{number}, {silent} not answering"
    return number + (", in step" if all(peer.is_in_step is True for peer in peers) else "")


def _cause(state: DialState) -> str:
    address = str(state.address)
    found = next((text for part, text in _CAUSES if part in state.reason), None)
    if found is not None:
        return found.format(address)
    reason = state.reason.removeprefix(f"cannot connect to {address}: ").removeprefix(f"no connection with {address}: ")
    return f"{address}: {reason}"
