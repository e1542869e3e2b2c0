"""The connected peers of a node, and commands of an operator to disconnect and ban peers. Usable in any thread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from cablestore.errors import NotFoundError
from cablestore.peers.bans import BANNED, Bans, host_name, is_ip_address
from cablestore.peers.dialling import Dials
from cablestore.peers.link import KICKED, PeerLink
from cablestore.peers.peer_events import Peer
from cablestore.peers.policy import REJECTED
from cablestore.peers.policy_keeper import PolicyKeeper
from cablestore.protocol.crypto import KEY_SIZE_BYTES

_LEAST_DIGITS: Final = 4
_KEY_DIGITS: Final = 2 * KEY_SIZE_BYTES


class PeerControl:
    """The connected peers of a node, and commands for them.

    A command names a peer by its address or its host, as in `peers`, or by at least the first 4 digits of its key.
    """

    def __init__(
        self,
        links: Iterable[PeerLink],
        bans: Bans,
        dials: Dials,
        policies: PolicyKeeper,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`links` yields the present connections, in any thread."""
        self._links = links
        self._bans = bans
        self._dials = dials
        self.policies: Final = policies
        self._loop = loop

    def peers(self) -> list[Peer]:
        """Return the connected peers in the order of their connections, without those whose handshake is unfinished."""
        return sorted((link.peer for link in self._links if link.is_established), key=lambda peer: peer.number)

    def kick(self, name: str) -> list[Peer]:
        """Disconnect a peer, which may connect again. Return its connections. Raises NotFoundError."""
        found = self._find(name)
        if not found:
            raise NotFoundError(f"no connected peer found with the address, host or key {name!r}")
        peers = [link.peer for link in found]  # before they end in the thread of the loop
        self._end(found, KICKED)
        return peers

    def ban(self, name: str) -> list[str]:
        """Disconnect a peer, and reject its connections until `unban`. Return the banned keys or hosts.

        For a peer that is not connected, `name` must be its complete key or its IP address. Raises NotFoundError, and
        StorageError if the ban cannot be stored.
        """
        found = self._find(name)
        text = host_name(name)
        if not found:
            banned = [self._unconnected(text)]
        elif any(text in (host_name(link.host), _dialed_host(link)) for link in found):
            banned = [text]
        else:
            banned = sorted({_key_of(link) or host_name(link.host) for link in found})
        self._bans.add(banned)
        self._end([link for link in self._links if self._bans.has(*names_of(link))], BANNED)
        return banned

    def unban(self, name: str) -> bool:
        """Accept a banned key or host again, and now retry all disconnected addresses of `Node.keep_connected`.

        Return False if it is not banned. Raises StorageError.
        """
        is_banned = self._bans.remove(host_name(name))
        if is_banned:
            self._loop.call_soon_threadsafe(self._dials.retry_now)
        return is_banned

    def bans(self) -> dict[str, int]:
        """Return the time of each ban in milliseconds, by key in hex or host."""
        return self._bans.all()

    def disconnect_rejected(self) -> None:
        """Disconnect the peers that the policy rejects."""
        rejects = self.policies.policy.peers.rejects
        self._end([link for link in self._links if rejects(*names_of(link))], REJECTED)

    def _find(self, name: str) -> list[PeerLink]:
        """Return the connections with this address or host, or of the peer whose key begins with `name`.

        Raises NotFoundError if the keys of several peers begin with `name`.
        """
        links = list(self._links)
        text = host_name(name)
        found = [link for link in links if text and text in (link.name, host_name(link.host), _dialed_host(link))]
        if found or not _is_digits(text):
            return found
        keys = {key for link in links if (key := _key_of(link)).startswith(text)}
        if len(keys) > 1:
            raise NotFoundError(f"the keys of several peers begin with {text}. Add more digits")
        return [link for link in links if _key_of(link) in keys]

    @staticmethod
    def _unconnected(text: str) -> str:
        is_key = _is_digits(text) and len(text) == _KEY_DIGITS
        if not is_key and not is_ip_address(text):
            raise NotFoundError(
                f"no connected peer found with the address, host or key {text!r}. To ban a peer that is not connected, "
                f"use its IP address or all {_KEY_DIGITS} digits of its key"
            )
        return text

    def _end(self, links: list[PeerLink], reason: str) -> None:
        def end() -> None:
            for link in links:
                link.end(reason)

        self._loop.call_soon_threadsafe(end)


def names_of(link: PeerLink) -> tuple[str, ...]:
    """Return the names by which a connection may be banned: hosts, and its key."""
    return (host_name(link.host), _dialed_host(link), _key_of(link))


def _dialed_host(link: PeerLink) -> str:
    return "" if link.dialed is None else host_name(link.dialed.host)


def _key_of(link: PeerLink) -> str:
    key = link.remote_static
    return "" if key is None else key.hex()


def _is_digits(text: str) -> bool:
    return len(text) >= _LEAST_DIGITS and not text.strip("0123456789abcdef")
