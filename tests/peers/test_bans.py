"""Banned peers: which connections a ban ends and rejects, and how bans are stored."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from by_hand import CABAL_KEY, listening, on_loop
from peering import HOST, logged, memory, soon, until

from cablestore import CableStore
from cablestore.errors import NodeError, NotFoundError, StorageError
from cablestore.peers import Address, Node, NodeSettings
from cablestore.peers.bans import Bans, host_name
from cablestore.peers.link import KICKED
from cablestore.peers.peer_control import PeerControl

SETTINGS = NodeSettings(cabal_key=CABAL_KEY)


def control_of(node: Node) -> PeerControl:
    assert node.control is not None
    return node.control


@pytest.mark.parametrize("reconciling", [False, True], ids=["cable", "reconciling"])
@on_loop
async def test_a_peer_with_a_banned_key_exchanges_no_message(reconciling: bool) -> None:
    with memory("b") as store:
        async with listening(cabal_key=CABAL_KEY) as (node, cable), Node(store, SETTINGS) as other:
            address = await node.reconcile_port.listen(Address(HOST, 0)) if reconciling else cable
            port = other.reconcile_port if reconciling else other
            link = await soon(port.connect(address))
            await until(node.peers)
            [peer] = node.peers()
            assert peer.key is not None
            [banned] = control_of(node).ban(peer.key.hex()[:5])
            assert banned == peer.key.hex()
            await soon(asyncio.shield(link.closed))
            await until(lambda: not node.peers())
            received = store.stats()
            again = await soon(asyncio.gather(port.connect(address), return_exceptions=True))
            if not isinstance(again[0], BaseException):  # the handshake of the side that connects ends first
                await soon(asyncio.shield(again[0].closed))
            assert node.peers() == []
            assert store.stats() == received
            assert control_of(node).unban(banned)
            await soon(port.connect(address))
            await until(node.peers)


@on_loop
async def test_a_banned_host_is_neither_admitted_nor_dialled() -> None:
    with memory("b") as store:
        async with listening(cabal_key=None) as (node, address), Node(store) as other:
            await soon(other.connect(address))
            await until(node.peers)
            assert control_of(node).ban(HOST) == [HOST]
            await until(lambda: not node.peers())
            link = await soon(other.connect(address))
            assert "the peer is banned" not in await soon(asyncio.shield(link.closed))  # only its own log has it
            assert node.peers() == []
            assert control_of(other).ban(HOST) == [HOST]
            with pytest.raises(NodeError, match="the peer is banned"):
                await soon(other.connect(address))


@on_loop
async def test_an_unbanned_peer_is_dialled_now() -> None:
    """The pause after the failed attempts would last a day."""
    pauses = NodeSettings(first_retry_s=86_400.0, longest_retry_s=86_400.0)
    with memory("b") as store:
        async with listening(cabal_key=None) as (_, address), Node(store, pauses) as other:
            control_of(other).ban(HOST)
            other.keep_connected(address)
            await until(lambda: any("the peer is banned" in dial.reason for dial in other.dials()))
            assert control_of(other).unban(HOST)
            await until(other.peers)


@on_loop
async def test_an_unknown_peer_name_disconnects_nobody() -> None:
    with memory("b") as store:
        async with listening(cabal_key=CABAL_KEY) as (node, address), Node(store, SETTINGS) as other:
            await soon(other.connect(address))
            await until(node.peers)
            for name in ("0", "abc", "", "nobody", "192.0.2.1"):
                with pytest.raises(NotFoundError, match="no connected peer found"):
                    control_of(node).kick(name)
            assert len(node.peers()) == 1


@on_loop
async def test_a_kicked_peer_may_connect_again() -> None:
    with logged() as log, memory("b") as store:
        async with listening(cabal_key=CABAL_KEY) as (node, address), Node(store, SETTINGS) as other:
            for name in (HOST, str(address), ""):
                link = await soon(other.connect(address))
                await until(node.peers)
                [peer] = node.peers()
                by = control_of(node if name != str(address) else other)
                found = by.kick(name or str(peer.key.hex()[:4] if peer.key else ""))
                assert [each.is_outgoing for each in found] == [name == str(address)]
                await soon(asyncio.shield(link.closed))
                await until(lambda: not node.peers())
            assert log.reasons().count(KICKED) == 3
            assert control_of(node).bans() == {}


@on_loop
async def test_a_key_is_named_by_enough_digits_to_tell_the_peers_apart() -> None:
    """The keys of these two peers begin with the same four digits."""
    with memory("207") as one, memory("627") as two:
        async with (
            listening(cabal_key=CABAL_KEY) as (node, address),
            Node(one, SETTINGS) as first,
            Node(two, SETTINGS) as second,
        ):
            links = [await soon(each.connect(address)) for each in (first, second)]
            await until(lambda: len(node.peers()) == 2)
            keys = [peer.key.hex() for peer in node.peers() if peer.key is not None]
            same = keys[0][: max(digits for digits in range(64) if keys[0][:digits] == keys[1][:digits])]
            assert len(same) >= 4
            control = control_of(node)
            for kick in (control.kick, control.ban):
                with pytest.raises(NotFoundError, match="the keys of several peers begin with"):
                    kick(same)
                with pytest.raises(NotFoundError, match="no connected peer found"):
                    kick(keys[0][:3])  # too few digits for a key
            with pytest.raises(NotFoundError, match="use its IP address or all 64 digits of its key"):
                control.ban("ab" * 31)
            [kicked] = control.kick(keys[0][: len(same) + 1])
            assert kicked.key is not None
            assert kicked.key.hex() == keys[0]
            await soon(asyncio.wait([asyncio.shield(link.closed) for link in links], return_when="FIRST_COMPLETED"))
            await until(lambda: len(node.peers()) == 1)
            assert control.ban("ab" * 32) == ["ab" * 32]
            assert control.ban("192.0.2.1") == ["192.0.2.1"]
            assert len(node.peers()) == 1


def test_stored_bans_are_read_and_a_damaged_file_raises_an_error(tmp_path: Path) -> None:
    bans = Bans(tmp_path)
    bans.add(["192.0.2.1", "ab" * 32])
    again = Bans(tmp_path)
    assert again.all() == bans.all()
    assert again.has("x", "192.0.2.1")
    assert not again.has("192.0.2.2", "")
    assert again.remove("192.0.2.1")
    assert not again.remove("192.0.2.1")
    assert Bans(tmp_path).all().keys() == {"ab" * 32}
    whole = json.loads((tmp_path / "bans.json").read_text())
    for damaged in ("", "{", "[]", json.dumps(whole | {"format": 2}), json.dumps(whole | {"bans": ["x"]})):
        (tmp_path / "bans.json").write_text(damaged)
        with pytest.raises(
            NodeError, match=r"cannot read the banned peers in .*bans.json: .*Correct or remove the file"
        ):
            Bans(tmp_path)


def test_a_ban_that_cannot_be_stored_does_not_apply(tmp_path: Path) -> None:
    """After a restart it would be gone."""
    bans = Bans(tmp_path)
    (tmp_path / "bans.json").mkdir()
    with pytest.raises(StorageError):
        bans.add(["192.0.2.1"])
    assert bans.all() == {}


def test_a_node_with_a_damaged_file_does_not_start(tmp_path: Path) -> None:
    async def main() -> None:
        with CableStore.open(tmp_path / "a") as store:
            (tmp_path / "a" / "bans.json").write_text("{")
            with pytest.raises(NodeError, match="Correct or remove the file"):
                async with Node(store):
                    pass
            (tmp_path / "a" / "bans.json").unlink()
            async with Node(store) as node:
                assert control_of(node).peers() == []
            assert node.control is None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "name"),
    [("192.0.2.1", "192.0.2.1"), ("2001:DB8:0::1", "2001:db8::1"), ("Peer.Example", "peer.example"), ("ABCD", "abcd")],
)
def test_a_host_has_one_spelling(text: str, name: str) -> None:
    assert host_name(text) == name
