"""Invisible names are rejected in own posts. In posts of others, they are displayed as public keys."""

from __future__ import annotations

import pytest
from people import ANN, BOB, raws

from cablestore import CableStore
from cablestore.errors import ArgumentError
from cablestore.protocol.body import Info

INVISIBLE = [
    "\u200b",
    "\u3164",
    "\u115f\u1160",
    "\u2800",
    "\u00ad\u034f",
    "\u202e \u2066",
    " \u00a0\u3000",
    "\t",
    "\u0301",
]


@pytest.mark.parametrize("name", INVISIBLE, ids=ascii)
def test_invisible_names_are_rejected_and_not_written(store: CableStore, name: str) -> None:
    store.set_name("ann")
    for write in (store.set_name, lambda name: store.set_info(name=name), lambda name: store.write(Info.of(name=name))):
        with pytest.raises(ArgumentError, match=r"contains only invisible characters\. Choose a visible name"):
            write(name)
    assert store.user(store.identity.public_key).name == "ann"


@pytest.mark.parametrize("name", INVISIBLE, ids=ascii)
def test_a_channel_with_an_invisible_name_cannot_be_created(store: CableStore, name: str) -> None:
    """A channel that others created is listed, and its members can write and leave."""
    store.import_identity(BOB.identity)
    for write in (store.join, lambda name: store.post(name, "hi"), lambda name: store.set_topic(name, "hi")):
        with pytest.raises(
            ArgumentError, match=r"channel name .* contains only invisible characters\. Choose a visible name"
        ):
            write(name)
    assert [channel.name for channel in store.channels()] == []
    store.ingest(raws(BOB.join(name)))
    assert [channel.members for channel in store.channels()] == [1]
    store.post(name, "hi")
    store.leave(name)
    assert [channel.members for channel in store.channels()] == [0]


@pytest.mark.parametrize("name", INVISIBLE, ids=ascii)
def test_users_with_invisible_names_are_displayed_by_key(store: CableStore, name: str) -> None:
    store.ingest(
        raws(BOB.join("default"), BOB.named(name), BOB.text("default", "hi"), ANN.text("default", f"hi {name}"))
    )
    assert store.user(BOB.key).name == BOB.key.hex()
    assert {message.name for message in store.messages("default").messages} == {BOB.key.hex(), ANN.key.hex()}


@pytest.mark.parametrize("name", ["a\u200b", "👍🏽", "!", "\u0e01", "한", "\ue000", "٣"], ids=ascii)
def test_visible_names_are_accepted(store: CableStore, name: str) -> None:
    store.set_name(name)
    assert store.user(store.identity.public_key).name == name
