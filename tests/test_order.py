"""Rule 2: the database is a function of the set of posts, not of the order in which they came."""

from __future__ import annotations

from history import AUTHORS, NOW_MS, Model, histories
from hypothesis import given
from hypothesis import strategies as st

from cablestore import CableStore, Dialect, Post, answers


def clock() -> int:
    return NOW_MS + 1


def new_store(dialect: Dialect) -> CableStore:
    return CableStore.in_memory(dialect=dialect, identity=AUTHORS[0], clock=clock)


def feed(store: CableStore, posts: list[Post], cuts: list[int]) -> None:
    """Ingest in batches of the sizes that `cuts` gives."""
    at = 0
    for cut in [*cuts, len(posts)]:
        store.ingest([post.raw for post in posts[at : at + cut]], batch_posts=cut)
        at += cut


def assert_whole(store: CableStore) -> None:
    report = store.check()
    assert report.is_clean, [str(problem) for problem in report.problems]


def assert_says(store: CableStore, model: Model) -> None:
    """The store's reads and answers are the model's."""
    with store.snapshot() as snapshot:
        assert [c.name for c in snapshot.channels()] == model.channels()
        assert list(answers.channel_list(snapshot.reader)) == model.channels()
        for channel in model.channels():
            found = snapshot.messages(channel, 1000, newest_first=False)
            assert [message.hash for message in found.messages] == model.messages(channel)
            assert {m.hash: m.name for m in found.messages} == {
                h: model.name(model.live[h].author) for h in model.messages(channel)
            }
            assert snapshot.topic_of(channel) == model.topic(channel)
            assert [user.public_key for user in snapshot.members(channel)] == model.members(channel)
            assert set(snapshot.heads(channel)) == model.heads(channel)
            assert len(snapshot.heads(channel)) > 0
            state = list(answers.channel_state(snapshot.reader, channel))
            assert len(state) == len(set(state))
            assert set(state) == model.state(channel)
            for start, end, limit in ((0, 0, 0), (0, NOW_MS, 0), (NOW_MS, NOW_MS + 1001, 0), (0, 0, 2), (81, 0, 1)):
                answer = list(answers.channel_time_range(snapshot.reader, channel, start, end, limit))
                assert answer == model.time_range(channel, start, end, limit)
        assert snapshot.reader is not None
        for author in AUTHORS:
            assert snapshot.user(author.public_key).name == model.name(author.public_key)
            written = {post.hash for post in snapshot.posts_by(author.public_key)}
            assert written == {h for h, post in model.live.items() if post.author == author.public_key}
        for digest in model.dead:
            stone = snapshot.deletion(digest)
            assert stone is not None
            assert snapshot.post(digest) is None
        assert set(answers.worth_requesting(snapshot.reader, [*model.live, *model.dead])) == set()
    assert store.stats().posts == model.counts()


@given(histories(), st.randoms(use_true_random=False), st.lists(st.integers(1, 9), max_size=8), st.booleans())
def test_any_order_any_batches_duplicates(
    history: tuple[Dialect, list[Post]], random: Random, cuts: list[int], duplicates: bool
) -> None:
    dialect, posts = history
    model = Model(posts)
    with new_store(dialect) as straight:
        feed(straight, posts, [])
        assert_whole(straight)
        assert_says(straight, model)
        expected = list(straight.dump())
    shuffled = [*posts, *posts] if duplicates else list(posts)
    random.shuffle(shuffled)
    with new_store(dialect) as other:
        feed(other, shuffled, cuts)
        assert list(other.dump()) == expected
        assert_whole(other)
        other.rebuild()
        assert list(other.dump()) == expected
        assert_whole(other)
