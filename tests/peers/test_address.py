"""Addresses of peers: their text, their limits, and errors about addresses at which a process cannot listen."""

from __future__ import annotations

import errno

import pytest

from cablestore.errors import ArgumentError, NodeError
from cablestore.peers import Address
from cablestore.peers.address import DEFAULT_PORT, check_address, listen_error


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("peer.example", Address("peer.example", DEFAULT_PORT)),
        ("peer.example:0", Address("peer.example", 0)),
        ("peer.example:65535", Address("peer.example", 65_535)),
        ("[::1]", Address("::1", DEFAULT_PORT)),
        ("[::1]:00001", Address("::1", 1)),
        ("::1", Address("::1", DEFAULT_PORT)),
    ],
)
def test_an_address_is_parsed_with_the_default_port(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert Address.parse(str(address)) == address
    check_address(address)


@pytest.mark.parametrize("text", ["", ":1", "h:65536", "h:000001", "h:", "h:x", "h:-1", "80", "[::1", "[::1]1", "[]:1"])
def test_other_text_is_rejected(text: str) -> None:
    with pytest.raises(NodeError, match=r"is not an address: expected host:port, such as 127\.0\.0\.1:13333"):
        Address.parse(text)


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_out_of_range_is_rejected(port: int) -> None:
    with pytest.raises(ArgumentError, match="port"):
        check_address(Address("peer.example", port))


@pytest.mark.parametrize("address", ["peer.example:1", ("peer.example", 1), None])
def test_a_value_that_is_not_an_address_is_rejected(address: object) -> None:
    with pytest.raises(ArgumentError, match="expected an Address"):
        check_address(address)


def test_a_host_that_is_not_text_is_rejected() -> None:
    with pytest.raises(ArgumentError, match=r"address\.host"):
        check_address(Address(b"peer.example", 1))  # type: ignore[arg-type] # as a program without types passes it


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EADDRINUSE, "Choose another port, or 0 for any"),
        (errno.EADDRNOTAVAIL, "Choose an address of this machine"),
        (errno.EACCES, "Choose a port from 1024 on"),
    ],
)
def test_an_error_of_listening_that_the_user_can_avoid_has_advice(number: int, advice: str) -> None:
    error = listen_error(Address("::1", 1), OSError(number, "the reason"))
    assert str(error) == f"cannot listen on [::1]:1: the reason. {advice}"


def test_other_errors_of_listening_have_no_advice() -> None:
    address = Address("::1", 1)
    assert str(listen_error(address, OSError(errno.EIO, "broken"))) == "cannot listen on [::1]:1: broken"
    assert str(listen_error(address, ValueError("no name"))) == "cannot listen on [::1]:1: no name"
