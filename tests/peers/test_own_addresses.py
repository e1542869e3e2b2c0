"""The address of a socket's end has the zone of a link-local address, and neither a flow label nor a second zone."""

from __future__ import annotations

import socket

import pytest

from cablestore.peers import Address
from cablestore.peers.own_addresses import address_of

NUMBER, NAME = socket.if_nameindex()[0]


@pytest.mark.parametrize(
    ("end", "host"),
    [
        (("192.0.2.1", 5), "192.0.2.1"),
        (("2001:db8::1", 5, 0, 0), "2001:db8::1"),
        (("2001:db8::1", 5, 7, 0), "2001:db8::1"),
        (("fe80::1", 5, 0, NUMBER), f"fe80::1%{NAME}"),
        (("fe80::1", 5, 7, NUMBER), f"fe80::1%{NAME}"),
        (("fe80::1%eth9", 5, 0, NUMBER), "fe80::1%eth9"),
        (("fe80::1", 5, 0, 2**31 - 1), f"fe80::1%{2**31 - 1}"),
    ],
)
def test_only_a_zone_is_part_of_an_address(end: tuple[object, ...], host: str) -> None:
    assert address_of(end) == Address(host, 5)
