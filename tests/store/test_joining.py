"""If the author of a text or a topic is not a member, a post/join precedes it (wire.md 5.4.3)."""

from __future__ import annotations

import random
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from people import ANN, BOB, raws
from stores import channels_of
from turns import leave_if_in

from cablestore import DRAFT8, CableStore, EventKind, Join, Leave, Post, StoreOptions, Text, Topic, limits
from cablestore.errors import ArgumentError
from cablestore.protocol.body import Body
from cablestore.protocol.dialect import ARCHIVES_CHANNEL
from cablestore.store import answers

NOW_MS = 1_700_000_000_000
BODIES = pytest.mark.parametrize("body", [Text("default", "hello"), Topic("default", "greetings")])


def written(store: CableStore) -> list[Post]:
    """Return the posts of the store in the order of the arrival log."""
    return [
        event.post for event in store.events(timeout_s=0) if event.kind is EventKind.ACCEPTED and event.post is not None
    ]


@pytest.fixture
def store(tmp_path: Path) -> CableStore:
    return CableStore.open(tmp_path / "store", identity=ANN.identity, options=StoreOptions(clock=lambda: NOW_MS))


@BODIES
def test_the_first_post_to_a_channel_joins_it(store: CableStore, body: Body) -> None:
    """The join and the requested post are in the same write, the join a millisecond earlier. The returned post is the
    requested one, which links to the join.
    """
    with store:
        store.ingest(raws(BOB.text("default", "before", at=1)))
        heads = store.heads("default")
        last = store.last_sequence
        post = store.write(body)
        events = list(store.events(last, timeout_s=0))
        assert [event.kind for event in events] == [EventKind.ACCEPTED] * 2
        join, second = (event.post for event in events)
        assert join is not None
        assert second == post
        assert post.body == body
        assert join.body == Join("default")
        assert (join.timestamp_ms, post.timestamp_ms) == (NOW_MS - 1, NOW_MS)
        assert join.links == tuple(heads)
        assert post.links == (join.hash,)
        assert store.heads("default") == [post.hash]
        assert join.hash in set(answers.channel_state(store.snapshot().reader, "default"))
        assert store.check(signatures=True).is_clean


@BODIES
def test_a_member_does_not_join_again(store: CableStore, body: Body) -> None:
    """A text or topic also makes its author a member (5.4.3), whether written here or on another device."""
    with store:
        store.join("default")
        store.write(body)
        store.write(body)
        assert [post.body for post in written(store)] == [Join("default"), body, body]
        store.ingest(raws(ANN.text("other", "from another device", at=1)))
        store.post("other", "from here")
        assert not any(post.body == Join("other") for post in written(store))


@BODIES
def test_a_post_after_a_leave_joins_again(store: CableStore, body: Body) -> None:
    with store:
        store.write(body)
        store.leave("default")
        with pytest.raises(ArgumentError, match="not a member"):
            store.leave("default")
        post = store.write(body)
        *_, left, join, last = written(store)
        assert (left.body, join.body, last) == (Leave("default"), Join("default"), post)
        assert left.timestamp_ms < join.timestamp_ms < post.timestamp_ms
        assert "default" in channels_of(store, ANN.key)


def test_channels_are_distinguished_as_in_the_dialect(tmp_path: Path) -> None:
    with CableStore.open(tmp_path, dialect=DRAFT8) as store:
        store.post("Cabal", "one")
        store.post("cABAL", "two")
        store.post("else", "three")
        assert [post.body for post in written(store)] == [
            Join("Cabal"),
            Text("Cabal", "one"),
            Text("cABAL", "two"),
            Join("else"),
            Text("else", "three"),
        ]


def test_the_reserved_channel_is_joined_like_any_other(store: CableStore) -> None:
    """Other programs display it as a channel, and treat its authors as members."""
    with store:
        store.post(ARCHIVES_CHANNEL, "archives 1 magnet:")
        assert next(post.body for post in written(store)) == Join(ARCHIVES_CHANNEL)


def test_a_rejected_post_does_not_join_its_channel(store: CableStore) -> None:
    with store:
        for body in (Text("default", "x" * 4097), Topic("default", "x" * 513)):
            with pytest.raises(ArgumentError, match="cannot write this post"):
                store.write(body)
        assert written(store) == []
        assert list(store.channels()) == []


def test_received_posts_do_not_cause_joins(store: CableStore) -> None:
    """Posts from peers and exports are stored unchanged, even those that the user wrote on another device."""
    with store:
        store.ingest(raws(BOB.text("a", "x"), ANN.text("b", "y"), BOB.topic("c", "z")))
        assert len(written(store)) == 3


def test_own_posts_have_rising_dates_if_the_clock_varies(tmp_path: Path) -> None:
    """Each own post is later than the previous one, joins included, unless the clock is set back by over a minute."""
    rng = random.Random("dates of joins rise")
    now_ms = NOW_MS
    with CableStore.open(tmp_path, options=StoreOptions(clock=lambda: now_ms)) as store:
        for _ in range(60):
            now_ms += rng.choice((-3, -1, 0, 0, 1, 1, 2, 5))
            channel = rng.choice("abc")
            rng.choice(
                (
                    store.join,
                    partial(leave_if_in, store),
                    lambda name: store.post(name, "x"),
                    lambda name: store.set_topic(name, "y"),
                )
            )(channel)
        posts = written(store)
        assert sum(isinstance(post.body, Join) for post in posts) > 10
        assert all(one.timestamp_ms < other.timestamp_ms for one, other in pairwise(posts))
        now_ms -= 2 * limits.MAX_OWN_CLOCK_STEP_MS
        store.post("d", "after the clock was set back")
        join, text = written(store)[-2:]
        assert (join.timestamp_ms, text.timestamp_ms) == (now_ms - 1, now_ms)
