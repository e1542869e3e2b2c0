"""Addresses of this machine: a connection from an address that it has lost cannot continue."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from cablestore.peers.network_watch import has_address, source_address

HAS_IPV6 = socket.has_ipv6 and source_address(("::1", 1, 0, 0)) == "::1"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_local_end_of_a_connection_is_an_address_of_the_machine(host: str) -> None:
    if host == "::1" and not HAS_IPV6:
        pytest.skip("this machine has no IPv6")
    family = socket.AF_INET if host == "127.0.0.1" else socket.AF_INET6
    with closing(socket.create_server((host, 0), family=family)) as listener:
        with socket.create_connection(listener.getsockname()[:2]) as connection:
            assert has_address(connection.getsockname())
        assert source_address(listener.getsockname()) == host


@pytest.mark.parametrize("end", [("192.0.2.1", 1), ("2001:db8::1", 1, 0, 0)])
def test_an_unassigned_address_is_not_an_address_of_the_machine(end: tuple[object, ...]) -> None:
    assert not has_address(end)
