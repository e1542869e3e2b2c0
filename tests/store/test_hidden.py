"""Only messages that are hidden for everybody are hidden messages."""

from __future__ import annotations

from peering import memory
from people import ANN, BOB

from cablestore.store.hidden import HiddenMessages


def test_only_texts_that_were_hidden_in_public_are_hidden_messages() -> None:
    hidden, private, shown = (BOB.text("default", word) for word in ("hidden", "private", "shown"))
    others = [BOB.join("default"), BOB.topic("default", "topic")]
    with memory("a", posts=[*others, hidden, private, shown]) as store:
        store.moderation.hide(posts=[hidden.hash])
        store.moderation.hide(posts=[private.hash], private=True)
        with store.snapshot() as state:
            found = HiddenMessages(state.reader, store.public_key)
            assert [post for post in (*others, hidden, private, shown) if found.has(post)] == [hidden]
            stranger = HiddenMessages(state.reader, ANN.key)
            assert not stranger.has(hidden)
