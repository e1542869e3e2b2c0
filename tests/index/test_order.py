"""Rule 2: the database depends on the set of posts, not on their order.

The stores keep all posts: tests/store/test_moderated_order.py tests removal by actions of moderation.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from history import AUTHORS, NOW_MS, Model, histories
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from stores import channels_of

from cablestore import CableStore, Dialect, Post, StoreOptions, Verdict
from cablestore.protocol.body import DELETE
from cablestore.protocol.dialect import LEGACY
from cablestore.store import ClosedStore, answers


def clock() -> int:
    return NOW_MS + 1


@contextmanager
def in_memory(dialect: Dialect) -> Iterator[CableStore]:
    with CableStore.in_memory(
        dialect=dialect, identity=AUTHORS[0], options=StoreOptions(clock=clock, moderated=False)
    ) as store:
        yield store


def on_disk(path: Path, dialect: Dialect) -> CableStore:
    return CableStore.open(
        path, dialect=dialect, identity=AUTHORS[0], options=StoreOptions(clock=clock, moderated=False)
    )


def feed(store: CableStore, posts: list[Post], cuts: list[int]) -> None:
    """Ingest in batches of the sizes in `cuts`, and the rest in one batch."""
    at = 0
    for cut in [*cuts, len(posts)]:
        store.ingest([post.raw for post in posts[at : at + cut]], batch_posts=max(cut, 1))
        at += cut


def assert_whole(store: CableStore) -> None:
    report = store.check()
    assert report.is_clean, [str(problem) for problem in report.problems]


def assert_equals_model(store: CableStore, model: Model) -> None:
    """Check that the store's reads and answers equal the model's."""
    with store.snapshot() as snapshot:
        assert [(channel.name, channel.members) for channel in snapshot.channels()] == [
            (channel, len(model.members(channel))) for channel in model.channels()
        ]
        assert list(answers.channel_list(snapshot.reader)) == model.channels()
        for channel in model.channels():
            found = snapshot.messages(channel, 1000, newest_first=False).messages
            assert [message.hash for message in found] == model.messages(channel)
            assert [message.name for message in found] == [model.name(message.author) for message in found]
            assert snapshot.topic(channel) == model.topic(channel)
            assert [user.public_key for user in snapshot.members(channel)] == model.members(channel)
            assert set(snapshot.heads(channel)) == model.heads(channel)
            assert snapshot.heads(channel)
            state = list(answers.channel_state(snapshot.reader, channel))
            assert len(state) == len(set(state))
            assert set(state) == model.state(channel)
            for start, end, limit in ((0, 0, 0), (0, NOW_MS, 0), (NOW_MS, NOW_MS + 1001, 0), (0, 0, 2), (81, 0, 1)):
                answer = list(answers.channel_time_range(snapshot.reader, channel, start, end, limit))
                assert answer == model.time_range(channel, start, end, limit)
        for channel in {"nowhere", *(post.channel or "" for post in model.live.values())}:
            for oldest in (0, 80, NOW_MS, NOW_MS + 1):
                answer = list(answers.moderation_state(snapshot.reader, [channel, channel], oldest))
                assert len(answer) == len(set(answer))
                assert set(answer) == model.moderation(channel, oldest)
        for author in AUTHORS:
            public_key = author.public_key
            assert snapshot.user(public_key).name == model.name(public_key)
            written = {post.hash for post in snapshot.posts_by(public_key)}
            assert written == {digest for digest, post in model.live.items() if post.author == public_key}
            joined = [channel for channel in model.channels() if public_key in model.members(channel)]
            assert channels_of(snapshot, public_key) == joined
            for channel in [*model.channels(), "nowhere"]:
                assert snapshot.user(public_key, channel).is_member is (channel in joined)
        for digest, post in model.dead.items():
            stone = snapshot.deletion(digest)
            assert stone is not None
            assert stone.author == post.author
            assert snapshot.get(digest) is None
            assert snapshot.links(digest) == post.links
        assert not list(answers.worth_requesting(snapshot.reader, [*model.live, *model.dead]))
        assert set(answers.post_request(snapshot.reader, [*model.live, *model.dead])) == {
            post.raw for post in model.live.values()
        }
    assert store.stats().posts == model.counts()


@given(histories(), st.randoms(use_true_random=False), st.lists(st.integers(1, 9), max_size=8), st.booleans())
def test_any_order_batches_and_duplicates_create_the_same_database(
    history: tuple[Dialect, list[Post]], random: Random, cuts: list[int], duplicates: bool
) -> None:
    dialect, posts = history
    with in_memory(dialect) as straight:
        feed(straight, posts, [])
        assert_whole(straight)
        assert_equals_model(straight, Model(posts))
        expected = list(straight.dump())
    shuffled = [*posts, *posts] if duplicates else list(posts)
    random.shuffle(shuffled)
    with in_memory(dialect) as other:
        feed(other, shuffled, cuts)
        assert list(other.dump()) == expected
        assert_whole(other)
        other.rebuild()
        assert list(other.dump()) == expected
        assert_whole(other)


@pytest.mark.thorough
@given(histories(max_posts=16), st.randoms(use_true_random=False), st.lists(st.integers(1, 7), min_size=1, max_size=4))
def test_a_store_that_is_reopened_between_batches_has_the_same_database(
    history: tuple[Dialect, list[Post]], random: Random, cuts: list[int]
) -> None:
    dialect, posts = history
    with in_memory(dialect) as straight:
        feed(straight, posts, [])
        expected = list(straight.dump())
    random.shuffle(posts)
    with tempfile.TemporaryDirectory() as folder:
        at = 0
        for cut in [*cuts, len(posts)]:
            with on_disk(Path(folder), dialect) as store:
                feed(store, posts[at : at + cut], [])
            at += cut
        with on_disk(Path(folder), dialect) as store:
            assert list(store.dump()) == expected
            assert_whole(store)
            store.rebuild()
            assert list(store.dump()) == expected
            assert store.last_sequence == len([e for e in store.events(timeout_s=0) if e.sequence])
        ClosedStore(folder, identity=AUTHORS[0]).rebuild()
        with on_disk(Path(folder), dialect) as store:
            assert list(store.dump()) == expected


@pytest.mark.thorough
@given(histories(), st.randoms(use_true_random=False), st.sets(st.integers(0, 23)))
def test_discarded_posts_leave_no_rows_and_can_be_stored_again(
    history: tuple[Dialect, list[Post]], random: Random, indexes: set[int]
) -> None:
    """Storing and discarding equals rebuilding from the rest. Discarded posts that are offered again are stored."""
    dialect, posts = history
    chosen = [posts[index].hash for index in sorted(indexes) if index < len(posts)]
    with in_memory(dialect) as store:
        feed(store, posts, [5])
        full = list(store.dump())
        random.shuffle(chosen)
        outcomes = {outcome.hash: outcome.verdict for outcome in store.discard(chosen)}
        dead = Model(posts).dead
        for post in posts:
            if post.hash in outcomes:
                due = Verdict.KEPT if post.type == DELETE else Verdict.DISCARDED
                assert outcomes[post.hash] is (Verdict.UNKNOWN if post.hash in dead else due)
        assert_whole(store)
        gone = frozenset(digest for digest, verdict in outcomes.items() if verdict is Verdict.DISCARDED)
        left = list(store.dump())
        assert store.stats().posts == Model(posts, gone).counts()
        store.rebuild()
        assert list(store.dump()) == left
        feed(store, posts, [])
        assert list(store.dump()) == full


class Life(RuleBasedStateMachine):
    """A store with posts, deletions, discards and rebuilds in any order always equals the expected one."""

    def __init__(self) -> None:
        super().__init__()
        self.store = CableStore.in_memory(
            dialect=LEGACY, identity=AUTHORS[0], options=StoreOptions(clock=clock, moderated=False)
        )
        self.offered: dict[bytes, Post] = {}

    @rule(history=histories(max_posts=8), batch_posts=st.integers(1, 9))
    def ingest(self, history: tuple[Dialect, list[Post]], batch_posts: int) -> None:
        dialect, posts = history
        if dialect is not LEGACY:
            return
        self.store.ingest([post.raw for post in posts], batch_posts=batch_posts)
        self.offered |= {post.hash: post for post in posts}

    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        if self.offered:
            self.store.discard([data.draw(st.sampled_from(sorted(self.offered)))])

    @rule(keep=st.integers(0, 3))
    def prune_by_count(self, keep: int) -> None:
        self.store.prune(keep_newest=keep)

    @rule(before_ms=st.sampled_from((0, 2, NOW_MS + 1)))
    def prune_by_age(self, before_ms: int) -> None:
        self.store.prune(before_ms=before_ms)

    @rule(author=st.sampled_from(AUTHORS))
    def prune_by_author(self, author: object) -> None:
        self.store.prune(by_author=getattr(author, "public_key"))  # noqa: B009 - a strategy's values have no type
        left = self.store.posts_by(getattr(author, "public_key"))  # noqa: B009 - the same
        assert all(post.type == DELETE for post in left)

    @rule(word=st.text(max_size=3))
    def write(self, word: str) -> None:
        try:
            post = self.store.post("default", word)
        except ValueError:
            return  # a lone surrogate
        self.offered[post.hash] = post

    @rule()
    def rebuild(self) -> None:
        before = list(self.store.dump())
        self.store.rebuild()
        assert list(self.store.dump()) == before

    @invariant()
    def is_complete(self) -> None:
        assert_whole(self.store)

    @invariant()
    def log_has_every_post(self) -> None:
        live: set[bytes] = set()
        for event in self.store.events(timeout_s=0):
            (live.add if event.kind.name == "ACCEPTED" else live.discard)(event.hash)
        assert live == {post.hash for author in AUTHORS for post in self.store.posts_by(author.public_key)}

    def teardown(self) -> None:
        self.store.close()


TestLife = pytest.mark.thorough(Life.TestCase)
TestLife.settings = settings(stateful_step_count=25)
