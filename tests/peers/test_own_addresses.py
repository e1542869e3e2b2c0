"""The address of a socket's end has the zone of a link-local address, and neither a flow label nor a second zone."""

from __future__ import annotations

import socket
from ipaddress import ip_address

import pytest

from cablestore.peers import Address
from cablestore.peers.own_addresses import address_of, reachable_at

NUMBER, NAME = socket.if_nameindex()[0]


def test_all_addresses_of_the_machine_replace_the_unspecified_one() -> None:
    assert reachable_at(Address("192.0.2.1", 5)) == (Address("192.0.2.1", 5),)
    for host, loopback in (("0.0.0.0", "127.0.0.1"), ("::", "::1")):
        found = [ip_address(address.host.partition("%")[0]) for address in reachable_at(Address(host, 5))]
        assert all(address.port == 5 for address in reachable_at(Address(host, 5)))
        assert {each.version for each in found} == {ip_address(host).version}
        loops = [each.is_loopback for each in found]
        assert loops == sorted(loops)
        if ip_address(loopback) in found:
            assert not any(each.is_unspecified for each in found)
            assert loops[-1]
    assert Address("127.0.0.1", 5) in reachable_at(Address("0.0.0.0", 5))


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
