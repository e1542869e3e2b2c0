"""Typed commands, as keys on a terminal, with the resulting screen text and posts in the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from people import ANN, BOB, CYD, Person, raws
from serving import HERE, Served
from terminals import CTRL_Q, Screen, Start

from cablestore import CableStore, Join, Leave, Text, Topic
from cablestore.protocol.body import LOCAL_ONLY, Block, Unblock

UP, CLEAR = "\x1b[A", "\x15"
DAVE = Person("dave d")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Store of ann, who hides and blocks bob publicly. A user without a name wrote in a separate channel."""
    with CableStore.open(tmp_path / "store") as store:
        store.import_identity(ANN.identity)
        store.set_name("ann")
        store.post("default", "I grow tomatoes")
        store.set_topic("default", "what grows")
        store.ingest(raws(BOB.named("bob"), BOB.text("default", "/me digs"), BOB.text("garden", "a spade")))
        store.ingest(raws(CYD.text("shed", "empty"), DAVE.named("Dave D"), DAVE.text("default", "hi")))
        store.moderation.hide(users=[BOB.key])
        store.moderation.hide(users=[BOB.key], channel="garden")
        store.moderation.block([BOB.key])
    return tmp_path / "store"


@pytest.mark.thorough("True")
@pytest.mark.parametrize("is_served", [False, True])
def test_commands_known_from_irc_work(  # noqa: PLR0915 - one session, step by step
    folder: Path, start_chat: Start, serving: Callable[..., Served], is_served: bool
) -> None:
    """All actions of the user are undone, emotes look like emotes, and commands without effect report that."""
    server = serving(folder, "--listen", HERE) if is_served else None
    if server is not None:
        server.address  # noqa: B018 - it is ready
    client = start_chat("-s", str(folder))
    sees = Screen(client)
    sees.shows("Write a message")

    def enter(line: str, *patterns: str) -> None:
        client.type(line)
        for pattern in patterns:
            sees.finds(pattern.replace(" ", ""))

    enter("/topic", "Topic of #default: what grows")
    enter("/TOPIC what grows ", "Nothing changed: #default already has this topic")
    enter("/blocked", f"bob {BOB.key.hex()[:16]}: blocked by ann")
    enter("/hidden", "hidden by ann", "hidden in #garden by ann")
    enter("/unblock BOB", "undid your public block")
    enter("/unblock bob", "bob is not blocked")
    enter("/hide ann", "You cannot hide yourself")
    enter("/unhide bob", "undid your public hide and your public hide in #garden", r"\* bob digs")
    enter("/whois bob", BOB.key.hex(), "in #default, #garden")
    enter("/me  waves", r"\* ann waves")
    enter("/leave shed", "Cannot leave #shed: you are not a member")
    enter("/part nowhere", "Channel not found: #nowhere")
    enter("/join #greenhouse, #SHED", "empty")
    enter("/join shed", "you are already in #shed")
    enter("/nick ann", "your name is already ann")
    enter("/names #default", r"\d members of #default: .*bob")
    enter("/msg bob hello", "Messages cannot be private")
    enter("/help J", "/j CHANNEL")
    client.press(UP)
    sees.shows(" /help J")
    client.press(CLEAR)
    sees.shows("Write a message")
    enter("//home is a path", "ann /home is a path")
    enter("/close", "You left #shed")
    enter("/join #default", "I grow tomatoes")
    enter("/topic -", "The topic of #default is cleared")
    client.press("/block Dave\t")
    sees.shows("/block Dave D ")
    enter("", "is blocked, only for you")
    enter("/block Dave D", "already blocked by you, privately")
    enter("/search tomato", "1 result for tomato")
    client.press("\x1b")
    sees.shows("Write a message")
    assert client.end(CTRL_Q) == 0
    if server is not None:
        assert server.stop() == 0

    with CableStore.open(folder, create=False) as store:
        assert store.check().problems == []
        written = [post.body for post in store.posts_by(ANN.key)]
        assert {body.channel for body in written if isinstance(body, Join)} == {"default", "greenhouse", "shed"}
        assert [body.channel for body in written if isinstance(body, Leave)] == ["shed"]
        assert Text("default", "/me waves") in written
        assert Text("shed", "/home is a path") in written
        assert sorted(body.topic for body in written if isinstance(body, Topic)) == ["", "what grows"]
        assert [body.privacy for body in written if isinstance(body, Unblock)] == [0]
        assert {body.recipients for body in written if isinstance(body, Block) and body.privacy == LOCAL_ONLY} == {
            (DAVE.key,)
        }
        assert not store.user(BOB.key).is_blocked
        assert store.topic("default") == ""
