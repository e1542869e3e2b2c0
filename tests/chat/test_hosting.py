"""Node that the client hosts: its addresses, status and acts while it runs, and after its end."""

from __future__ import annotations

import asyncio

import pytest
from chatting import cabals_on, new_store
from waiting import wait_until

from cablestore.chat.hosting import HostedNode, Hosting, with_stored_channels
from cablestore.errors import NotFoundError
from cablestore.peers import Address, NodeSettings

KEY = bytes(range(32))
HERE = Address("127.0.0.1", 0)


def test_two_clients_connect_and_report_each_other() -> None:
    settings = NodeSettings(cabal_key=KEY)
    with new_store() as first, new_store("bob") as second:
        node = HostedNode(first, Hosting(settings, (HERE, HERE)))
        assert node.watched.state is not None
        listening = node.watched.state.listening
        assert len(set(listening)) == 2
        other = HostedNode(second, Hosting(settings, connect=(Address.parse(listening[0]),)))
        wait_until(lambda: node.watched.state and node.watched.state.peers)
        wait_until(lambda: other.watched.state and other.watched.state.peers)
        status = wait_until(node.watched.status)
        assert status is not None
        [peer] = status.peers
        assert (peer.is_outgoing, status.max_store_size_bytes) == (False, settings.max_store_size_bytes)
        [dial] = other.watched.dials(now=True)
        assert (dial.address, dial.is_connected) == (listening[0], True)
        assert node.watched.dials() == []
        with pytest.raises(NotFoundError):
            node.watched.kick("192.0.2.7")
        banned = node.watched.ban(peer.address)
        assert [ban.peer for ban in node.watched.bans()] == banned
        assert [node.watched.unban(banned[0]) for _ in range(2)] == [True, False]
        assert node.watched.policy().denied_channels == ()
        for each in (other, node):
            each.close()
        assert (node.watched.status(), node.watched.dials(), node.watched.bans()) == (None, [], [])
        assert node.watched.state.peers == ()
        for act in (node.watched.kick, node.watched.ban, node.watched.unban):
            with pytest.raises(NotFoundError):
                act("192.0.2.7")


def test_a_client_with_a_node_shows_its_addresses_and_its_invitation() -> None:
    with cabals_on(new_store(), hosting=Hosting(NodeSettings(cabal_key=KEY), (HERE,))) as [cabal]:
        [address] = cabal.listening
        assert (cabal.connection, cabal.is_connected) == ("no peers yet", False)
        assert asyncio.run(cabal.invitation()) == f"cable:{KEY.hex()}?peer={address}"


def test_followed_channels_are_spelled_as_in_the_store() -> None:
    with new_store() as store:
        store.join("Garden")
        plain = NodeSettings()
        assert with_stored_channels(store, plain) is plain
        chosen = NodeSettings(channels=frozenset({"garden", "shed"}))
        assert with_stored_channels(store, chosen).channels == frozenset({"Garden", "shed"})
