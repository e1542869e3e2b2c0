"""Invitation to the cabal of an open store. Pure."""

from __future__ import annotations

from ipaddress import ip_address

from cablestore.errors import ArgumentError
from cablestore.moderation import Seed
from cablestore.peers import Address, Invitation
from cablestore.remote.node import NodeState


def invitation_text(node: NodeState | None, seed: Seed | None) -> str:
    """Return the invitation to a cabal, given its node and its moderation seed.

    Raises ArgumentError if the client is offline, or if there is neither a cabal key nor an address.
    """
    if node is None:
        raise ArgumentError("This client is offline. Start the client with --listen, --connect or --invitation")
    reachable = filter(_names_a_host, map(Address.parse, node.listening))
    peers = tuple(dict.fromkeys((*reachable, *map(Address.parse, node.connect))))
    is_in_force = seed is not None and seed.revoked_at_ms is None
    return str(Invitation(node.cabal_key, peers, Seed(seed.roles, 0).write() if seed and is_in_force else b""))


def _names_a_host(address: Address) -> bool:
    """Return False for an address such as 0.0.0.0, which means all addresses of the machine."""
    try:
        return not ip_address(address.host.partition("%")[0]).is_unspecified
    except ValueError:
        return True
