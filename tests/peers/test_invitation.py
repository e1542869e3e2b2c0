"""Invitations: every string is parsed or rejected, and what is written can be read again."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from people import ANN, BOB

from cablestore import limits
from cablestore.errors import ArgumentError, NodeError
from cablestore.moderation import UserRole
from cablestore.peers import Address, Invitation

KEY = bytes(range(32))
SEED = bytes([UserRole.ADMIN]) + ANN.key + bytes([UserRole.MOD]) + BOB.key

labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
hosts = (
    st.lists(labels, min_size=1, max_size=4).map(".".join)
    | st.ip_addresses().map(str).filter(lambda host: host not in ("0.0.0.0", "::"))
    | st.sampled_from(["münchen.example", "例え.テスト", "::1", "fe80::1"])
)
addresses = st.builds(Address, hosts, st.integers(1, 65_535))
seeds = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(min_size=32, max_size=32)), max_size=16).map(
    lambda roles: b"".join(bytes([role]) + key for key, role in {key: role for role, key in roles}.items())
)
parts = (
    st.sampled_from(["cable:", "CABLE://", "?", "&", "=", "peer=", "seed=", "%", "%ff", ":", "[", "]", "\0", "\udcff"])
    | st.just(KEY.hex())
    | st.text(max_size=5)
    | hosts
)


@pytest.mark.thorough
@given(peers=st.lists(addresses, min_size=1, max_size=4).map(tuple), key=st.none() | st.just(KEY), seed=seeds)
def test_a_formatted_invitation_is_parsed_unchanged(peers: tuple[Address, ...], key: bytes | None, seed: bytes) -> None:
    invitation = Invitation(key, peers, seed)
    text = str(invitation)
    assert text.isascii()
    assert text.isprintable()
    assert " " not in text
    assert Invitation.parse(text) == invitation
    assert Invitation.parse(f"\n {text}\r\n") == invitation
    assert KEY.hex() not in repr(invitation)
    assert repr(KEY) not in repr(invitation)


@pytest.mark.thorough
@given(text=st.text(max_size=200) | st.lists(parts, max_size=12).map("".join).map("cable:".__add__))
@example("cable:?peer=a:" + "9" * 5000)
@example("cable:?peer=[")
@example("cable:?peer=[::1%25x]:1")
@example("cable:?peer=a:1;peer=b:1")
def test_any_text_is_an_invitation_or_raises_one_error(text: str) -> None:
    try:
        invitation = Invitation.parse(text)
    except ArgumentError as error:
        shown = str(error)
    else:
        shown = repr(invitation)
        assert Invitation.parse(str(invitation)) == invitation
    assert KEY.hex() not in shown


def test_an_invitation_has_the_documented_form() -> None:
    peers = (Address("chat.example", 13333), Address("2001:db8::1", 1))
    text = f"cable:{KEY.hex()}?peer=chat.example:13333&peer=[2001:db8::1]:1&seed={SEED.hex()}"
    assert str(Invitation(KEY, peers, SEED)) == text
    assert Invitation.parse(text) == Invitation(KEY, peers, SEED)
    assert Invitation.parse(f"cable://{KEY.hex().upper()}/?peer=chat.example") == Invitation(KEY, peers[:1])
    assert str(Invitation(KEY)) == f"cable:{KEY.hex()}"
    assert str(Invitation(None, peers[:1])) == "cable:?peer=chat.example:13333"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "does not begin with cable:"),
        (KEY.hex(), "does not begin with cable:"),
        (f"cabal:{KEY.hex()}", "does not begin with cable:"),
        ("cable:", "neither a cabal key nor a peer"),
        (f"cable:{KEY.hex()[1:]}", "64 hex digits, got 63 characters"),
        (f"cable:{KEY.hex()[:-1]}g", "64 hex digits, got 64 characters"),
        (f"cable:{KEY.hex()} x", "64 hex digits, got 66 characters"),
        (f"cable:{KEY.hex()}?peer", "parameters such as peer=HOST:PORT"),
        (f"cable:{KEY.hex()}?peer=%ff", "parameters such as peer=HOST:PORT"),
        (f"cable:{KEY.hex()}?pear=a", "unknown parameter 'pear', expected peer or seed"),
        (f"cable:{KEY.hex()}?peer=", "is not an address"),
        (f"cable:{KEY.hex()}?peer=a:0", "invalid peer address"),
        (f"cable:{KEY.hex()}?peer=a:65536", "is not an address"),
        (f"cable:{KEY.hex()}?peer=0.0.0.0", "invalid peer address"),
        (f"cable:{KEY.hex()}?peer=[::]:5", "invalid peer address"),
        (f"cable:{KEY.hex()}?peer=[a:b]:5", "invalid peer address"),
        (f"cable:{KEY.hex()}?peer=a%20b", "invalid peer address"),
        (f"cable:{KEY.hex()}?seed=", "got 0 bytes"),
        (f"cable:{KEY.hex()}?seed={SEED.hex()}00", "got 67 bytes"),
        (f"cable:{KEY.hex()}?seed={SEED.hex()}&seed={SEED.hex()}", "contains 2 moderation seeds"),
    ],
)
def test_errors_name_the_problem_and_show_no_key(text: str, reason: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(reason)) as caught:
        Invitation.parse(text)
    assert KEY.hex()[:20] not in str(caught.value)


def test_the_limits_of_an_invitation_apply() -> None:
    peers = tuple(Address(f"{number:03}.{'x' * 50}.{'y' * 50}.example", 13333) for number in range(100))
    seed = b"".join(bytes([1]) + bytes([number]) * 32 for number in range(limits.MAX_SEED_USERS))
    most = Invitation(KEY, peers[: limits.MAX_INVITATION_PEERS], seed)
    assert Invitation.parse(str(most)) == most
    with pytest.raises(ArgumentError, match="names 33, the maximum is 32"):
        Invitation(KEY, peers[: limits.MAX_INVITATION_PEERS + 1])
    with pytest.raises(ArgumentError, match="more than 16,384 characters"):
        Invitation.parse(f"cable:{KEY.hex()}" + " " * limits.MAX_INVITATION_SIZE_CHARACTERS)
    with pytest.raises(ArgumentError, match="has 31 bytes, expected 32"):
        Invitation(bytes(31))


def test_a_port_may_have_any_number_of_digits() -> None:
    with pytest.raises(NodeError, match="is not an address"):
        Address.parse("a:" + "9" * 5000)


def test_a_port_without_a_host_is_not_an_address() -> None:
    with pytest.raises(NodeError, match="'9464' is not an address: expected host:port"):
        Address.parse("9464")


@pytest.mark.parametrize("text", ["[::1]80", "[::1]x:80", "[::1]::80", "[::1", "[]:80", "[::1]]:80"])
def test_only_a_port_may_follow_the_bracket_of_an_address(text: str) -> None:
    assert Address.parse("[::1]:80") == ("::1", 80)
    assert Address.parse("[::1]") == ("::1", 13333)
    with pytest.raises(NodeError, match="is not an address"):
        Address.parse(text)


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: path.write_bytes(b"cable:\xff"), "it is not text"),
        (lambda path: path.write_text("x" * 100_000), "more than 16,384 characters"),
        (lambda path: path.write_text(""), "does not begin with cable:"),
    ],
)
def test_a_file_without_an_invitation_raises_one_error(
    tmp_path: Path, made: Callable[[Path], None], reason: str
) -> None:
    made(tmp_path / "file")
    with pytest.raises(ArgumentError, match=reason):
        Invitation.read(tmp_path / "file")


def test_a_file_that_others_can_read_causes_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "invitation"
    path.write_text(f"{Invitation(KEY)}\n")
    path.chmod(0o600)
    with caplog.at_level(logging.INFO, "cablestore.node"):
        assert Invitation.read(path) == Invitation(KEY)
        assert caplog.records == []
        path.chmod(0o640)
        assert Invitation.read(str(path)) == Invitation(KEY)
    [record] = caplog.records
    assert (vars(record)["path"], vars(record)["mode"]) == (str(path), "0640")
    assert KEY.hex() not in caplog.text


def test_a_pipe_is_read_as_a_file() -> None:
    given, taken = os.pipe()
    os.write(taken, str(Invitation(KEY)).encode())
    os.close(taken)
    try:
        assert Invitation.read(f"/dev/fd/{given}") == Invitation(KEY)
    finally:
        os.close(given)


@pytest.mark.parametrize("port", [0, 1, 65_535])
def test_the_lowest_and_the_highest_port_are_valid(port: int) -> None:
    assert Address.parse(f"a:{port}") == ("a", port)
    assert Address.parse(f"[::1]:{port}") == ("::1", port)


@pytest.mark.parametrize("port", ["65536", "99999", "-1", "", "0x1", "000001"])
def test_other_values_than_ports_are_rejected(port: str) -> None:
    for host in ("a", "[::1]x"):
        with pytest.raises(NodeError, match="is not an address"):
            Address.parse(f"{host}:{port}")
