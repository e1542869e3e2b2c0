"""Addresses of peers: `host:port`."""

from __future__ import annotations

import errno
import ipaddress
from contextlib import suppress
from typing import Final, NamedTuple

from cablestore.advice import TOO_MANY_FILES_ADVICE
from cablestore.arguments import check_instance, check_integer, check_text
from cablestore.errors import NodeError

DEFAULT_PORT: Final = 13333
"""The default port of cable-client.js."""
_NETWORK_BITS: Final = 64
"""Length of the IPv6 prefix that a provider usually assigns to one customer."""

_LISTEN_ADVICE: Final = {
    errno.EADDRINUSE: "Choose another port, or 0 for any",
    errno.EADDRNOTAVAIL: "Choose an address of this machine",
    errno.EACCES: "Choose a port from 1024 on",
    errno.EMFILE: TOO_MANY_FILES_ADVICE,
    errno.ENFILE: TOO_MANY_FILES_ADVICE,
}


class Address(NamedTuple):
    """Host and port where a peer listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, default_port: int = DEFAULT_PORT) -> Address:
        """Parse `host`, `host:port` or `[v6]:port`. Raises NodeError for other text, such as a port without a host."""
        host, port = text, str(default_port)
        if text.startswith("["):
            host, bracket, rest = text[1:].partition("]")
            is_complete = bracket and rest[:1] in ("", ":")
            port = (rest[1:] or port) if is_complete else ""
        elif text.count(":") == 1:
            host, port = text.split(":")
        elif text.isdecimal():
            host = ""  # a port without a host, which is rejected
        if not host or not port.isdecimal() or len(port) > 5 or int(port) > 65_535:
            raise NodeError(f"{text!r} is not an address: expected host:port, such as 127.0.0.1:{default_port}")
        return cls(host, int(port))

    def __str__(self) -> str:
        """Return the form that `parse` reads."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def check_address(address: object) -> None:
    """Raise ArgumentError for a value that is not an address."""
    check_instance("address", address, Address, "an Address, such as Address.parse('127.0.0.1:13333')")
    check_text("address.host", address.host)  # type: ignore[attr-defined] # it is an Address
    check_integer("address.port", address.port, 0, 65_535)  # type: ignore[attr-defined] # it is an Address


def listen_error(address: Address, error: Exception) -> NodeError:
    """Return the error for an address at which a process cannot listen, with advice for the user."""
    reason = getattr(error, "strerror", None) or error
    advice = _LISTEN_ADVICE.get(getattr(error, "errno", None) or 0)
    return NodeError(f"cannot listen on {address}: {reason}{'' if advice is None else f'. {advice}'}")


def network_of(host: str) -> str:
    """Return the network whose peers share limits: an IPv4 address, or the first 64 bits of an IPv6 address.

    A host name is returned unchanged.
    """
    with suppress(ValueError):
        address = ipaddress.ip_address(host.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address):
            if address.ipv4_mapped is not None:
                return str(address.ipv4_mapped)
            return str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False))
    return host
