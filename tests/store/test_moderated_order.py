"""The posts that a moderated store holds do not depend on the order in which posts and actions arrive.

Peers offer a rejected post again after it becomes acceptable, and so do the tests. Blocks keep posts that arrived
before them (moderation.md 4.6): all posts if they do not drop, and otherwise actions and deletions. Therefore, the histories
here contain only blocks that drop, and no blocks on the local user. They contain no action or deletion of a blocked
user that is later than the block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from history import AUTHORS, NOW_MS, histories
from hypothesis import given, settings
from hypothesis import strategies as st
from people import raws
from stores import scratch_folder

from cablestore import Block, CableStore, Dialect, Post, StoreOptions, encode_post
from cablestore.index.drops import KEPT_TYPES
from cablestore.moderation import Decisions, StoredActs, UserRole
from cablestore.protocol.body import Role
from cablestore.store import ClosedStore, answers

OWN = AUTHORS[0]


@contextmanager
def in_memory(dialect: Dialect) -> Iterator[CableStore]:
    with CableStore.in_memory(
        dialect=dialect, identity=OWN, options=StoreOptions(verify_threads=1, clock=lambda: NOW_MS + 1)
    ) as store:
        yield store


def dropping(posts: list[Post], dialect: Dialect) -> list[Post]:
    """Return the history with blocks that drop and do not notify, and with an admin from the beginning."""
    found = []
    by_key = {author.public_key: author for author in AUTHORS}
    for post in posts:
        body = post.body
        if isinstance(body, Block):
            identity, time_ms = by_key[post.author], post.timestamp_ms
            body = replace(body, drop=1, notify=0)
            found.append(encode_post(body, links=(), timestamp_ms=time_ms, identity=identity, dialect=dialect))
        else:
            found.append(post)
    role = Role("", 0, "", AUTHORS[1].public_key, UserRole.ADMIN.in_post)
    found.append(encode_post(role, links=(), timestamp_ms=79, identity=OWN, dialect=dialect))
    blocks = [post for post in found if isinstance(post.body, Block)]

    def is_kept_in_one_order(post: Post) -> bool:
        return post.type in KEPT_TYPES and any(
            isinstance(block.body, Block)
            and post.author in block.body.recipients
            and post.timestamp_ms > block.timestamp_ms
            for block in blocks
        )

    left = [post for post in found if not is_kept_in_one_order(post)]
    return [post for post in left if not post.is_local_only or post.author == OWN.public_key]


def feed(store: CableStore, posts: list[Post], cuts: list[int]) -> None:
    at = 0
    for cut in [*cuts, len(posts)]:
        store.ingest(raws(*posts[at : at + cut]), batch_posts=max(cut, 1), verify=False)
        at += cut
    store.moderation.sweep()


def state_of(store: CableStore) -> object:
    """Return everything that the store reports about roles, and about hidden, dropped and blocked targets."""
    decisions = store.moderation.decisions
    assert decisions is not None
    channels = [None, *store.moderation.contexts()]
    return (
        [list(decisions.history(channel)) for channel in channels],
        [
            (user.public_key, channel, store.user(user.public_key, channel))
            for user in store.users()
            for channel in channels
        ],
        [
            (channel, [message.hash for message in store.messages(channel.name, 1000).messages])
            for channel in store.channels()
        ],
    )


def assert_whole(store: CableStore, posts: list[Post]) -> None:
    """Check the rows, that no dropped post is stored or requested, and that the decisions follow from the rows."""
    report = store.check()
    assert report.is_clean, [str(problem) for problem in report.problems]
    applied = store.moderation.position.moderation
    assert applied is not None
    assert not applied.is_sweeping
    with store.snapshot() as snapshot:
        reader = snapshot.reader
        fresh = Decisions.read(StoredActs(reader, OWN.public_key), OWN.public_key)
        for channel in [None, *store.moderation.contexts()]:
            assert list(fresh.history(channel)) == list(applied.decisions.history(channel))
        for post in posts:
            held = reader.post(post.hash) is not None
            rejection = applied.rejection(post)
            assert not (held and rejection), (post, rejection)
            if rejection is not None:
                assert list(answers.worth_requesting(reader, [post.hash])) == []
        heads = [(channel.name, store.heads(channel.name)) for channel in store.channels()]
        assert all(found for _, found in heads), heads


@pytest.mark.thorough
@settings(max_examples=max(settings().max_examples // 2, 10))
@given(histories(), st.randoms(use_true_random=False), st.lists(st.integers(1, 9), max_size=8), st.booleans())
def test_actions_in_any_order_have_the_same_result(
    history: tuple[Dialect, list[Post]], random: Random, cuts: list[int], rebuilds: bool
) -> None:
    dialect, drawn = history
    posts = dropping(drawn, dialect)
    with in_memory(dialect) as straight:
        feed(straight, posts, [])
        feed(straight, posts, [])
        assert_whole(straight, posts)
        expected, said = list(straight.dump()), state_of(straight)
    shuffled = random.sample(posts, len(posts))
    with in_memory(dialect) as other:
        feed(other, shuffled, cuts)
        if rebuilds:
            other.rebuild()
        feed(other, shuffled, cuts)
        assert_whole(other, posts)
        assert list(other.dump()) == expected
        assert state_of(other) == said
        other.rebuild()
        assert_whole(other, posts)
        assert list(other.dump()) == expected
        assert state_of(other) == said


@pytest.mark.thorough
@settings(max_examples=max(settings().max_examples // 5, 10))
@given(histories(max_posts=16), st.randoms(use_true_random=False))
def test_reopened_and_rebuilt_stores_decide_the_same(history: tuple[Dialect, list[Post]], random: Random) -> None:
    """Histories may contain any actions, including blocks that do not drop."""
    dialect, posts = history
    posts = random.sample(posts, len(posts))
    with scratch_folder() as folder:
        path = Path(folder) / "store"

        def opened() -> CableStore:
            return CableStore.open(
                path, dialect=dialect, identity=OWN, options=StoreOptions(verify_threads=1, clock=lambda: NOW_MS + 1)
            )

        with opened() as store:
            feed(store, posts[::2], [3])
        with opened() as store:
            feed(store, posts[1::2], [2])
            expected, said = list(store.dump()), state_of(store)
        with opened() as store:
            assert list(store.dump()) == expected
            assert state_of(store) == said
        ClosedStore(path, identity=OWN).rebuild()
        assert ClosedStore(path, identity=OWN).check().is_clean
        with opened() as store:
            assert list(store.dump()) == expected
            assert state_of(store) == said
