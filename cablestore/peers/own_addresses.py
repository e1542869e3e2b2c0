"""The addresses of this machine: where peers can connect if a node listens on all of them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from importlib.util import find_spec
from ipaddress import ip_address
from typing import Any

from cablestore.peers.address import Address


def address_of(end: tuple[Any, ...]) -> Address:
    """Return the address of a socket's end, with the zone of a link-local address, which connections need."""
    host, port, *more = end
    if len(more) == 2 and more[1] and "%" not in host:
        host = f"{host}%{_interface(more[1])}"
    return Address(host, port)


def _interface(number: int) -> str:
    try:
        return socket.if_indextoname(number)
    except OSError:  # the interface was removed
        return str(number)


def reachable_at(address: Address) -> tuple[Address, ...]:
    """Return the addresses at which peers can reach a node that listens on `address`.

    That is the address itself, unless it is 0.0.0.0 or :: and `ifaddr` is installed. Loopback addresses are last.
    """
    found = ip_address(address.host)
    if not found.is_unspecified or find_spec("ifaddr") is None:
        return (address,)
    hosts = sorted(
        _hosts(found.version), key=lambda host: (ip_address(host).is_loopback, ip_address(host).is_link_local)
    )
    return tuple(Address(host, address.port) for host in hosts) or (address,)


def _hosts(version: int) -> Iterator[str]:
    """Yield the addresses of all interfaces."""
    import ifaddr  # noqa: PLC0415 - optional

    for adapter in ifaddr.get_adapters():
        for each in adapter.ips:
            if version == 4 and isinstance(each.ip, str):
                yield each.ip
            elif version == 6 and not isinstance(each.ip, str):
                host, _, zone = each.ip
                yield address_of((host, 0, 0, zone)).host if ip_address(host).is_link_local else host
