"""Changes for live requests: what each new post, and each deletion, changes in a channel."""

from __future__ import annotations

import pytest
from peering import memory
from people import ANN, BOB, raws

from cablestore import Post
from cablestore.peers.live_changes import LiveChange, Subject, changes_of

NAME, JOIN, TEXT, LEAVE = ANN.named("Ann"), ANN.join("default"), ANN.text("default", "x"), ANN.leave("default")
TOPIC, LATER_TOPIC = ANN.topic("default", "one"), ANN.topic("default", "two")
LATER_TEXT, LATER_JOIN = ANN.text("default", "y"), ANN.join("default")
NO_TEXT, NO_TOPIC, NO_LEAVE = ANN.delete(TEXT), ANN.delete(LATER_TOPIC), ANN.delete(LEAVE)
FOREIGN = BOB.delete(TEXT)
CHAT, STATE = Subject.CHAT, Subject.STATE


def changes(before: list[Post], post: Post, channels: frozenset[str]) -> list[LiveChange]:
    with memory("a", posts=before) as store:
        after = store.last_sequence
        store.ingest(raws(post))
        with store.snapshot() as state:
            found, last = changes_of(state.reader, after, channels, ANN.key)
            assert last == store.last_sequence
            assert all(after < item.sequence <= last for item in found)
            everything, until = changes_of(state.reader, 0, channels, ANN.key, most=1)
            assert until == 1
            assert {item.sequence for item in everything} <= {1}
    return found


@pytest.mark.parametrize(
    ("before", "post", "expected"),
    [
        ([NAME], TEXT, [(CHAT, TEXT), (STATE, NAME)]),  # a new member's name is part of the state
        ([NAME, JOIN], TEXT, [(CHAT, TEXT)]),
        ([NAME, TEXT], LATER_TEXT, [(CHAT, LATER_TEXT), (STATE, NAME)]),
        ([NAME], JOIN, [(STATE, JOIN), (STATE, NAME)]),
        ([NAME, TEXT], LATER_JOIN, [(STATE, LATER_JOIN), (STATE, NAME)]),
        ([JOIN], TEXT, [(CHAT, TEXT)]),
        ([NAME, JOIN], LEAVE, [(STATE, LEAVE)]),
        ([NAME], TOPIC, [(STATE, TOPIC), (STATE, NAME)]),
        ([JOIN], NAME, [(STATE, NAME)]),
        ([JOIN, LEAVE], NAME, []),
        ([], NAME, []),
        ([JOIN, TEXT], NO_TEXT, [(CHAT, NO_TEXT)]),
        ([TOPIC, LATER_TOPIC], NO_TOPIC, [(CHAT, NO_TOPIC), (STATE, TOPIC)]),
        ([NAME, JOIN, LEAVE], NO_LEAVE, [(CHAT, NO_LEAVE), (STATE, NAME), (STATE, JOIN)]),
        ([TEXT], FOREIGN, []),
    ],
)
def test_a_post_changes_the_texts_or_the_state_of_its_channel(
    before: list[Post], post: Post, expected: list[tuple[Subject, Post]]
) -> None:
    found = changes(before, post, frozenset({"default"}))
    assert [(item.subject, item.hash, item.channel) for item in found] == [
        (subject, changed.hash, "default") for subject, changed in expected
    ]
    for item in found:
        is_new = item.hash == post.hash
        assert (item.is_new, item.is_own) == (is_new, is_new and post.author == ANN.key)
    without_state = [(item.subject, item.hash) for item in changes(before, post, frozenset({"other"}))]
    assert set(without_state) <= {(subject, changed.hash) for subject, changed in expected}
    assert (STATE, NAME.hash) not in without_state
