"""Reads that a page of messages needs to find its order, and the cached order while posts arrive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import pytest
from exporting import forge
from hypothesis import given
from hypothesis import strategies as st
from people import ANN, BOB, CYD, START_MS, raws

from cablestore import LEGACY, CableStore, Join, Post, StoreOptions, Text, Tombstone, limits
from cablestore.index.database import Row
from cablestore.index.reader import Reader
from cablestore.index.tombstone import Skeleton
from cablestore.store.cursor import MessageCursor
from cablestore.store.known_positions import KnownPositions, PositionCache
from cablestore.store.message_order import MessageOrder

FAR_MS = 6 * 86_400_000


class CountingSource:
    """Source that counts reads by the first part of their keys."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.reads: Counter[str] = Counter()

    def _count(self, key: bytes) -> None:
        self.reads[key.split(b"!")[1].decode()] += 1

    def get(self, key: bytes) -> bytes | None:
        self._count(key)
        return self._reader.get(key)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False, at_once: int = 0) -> Iterator[Row]:
        self._count(start)
        return self._reader.scan(start, stop, reverse=reverse, at_once=at_once)

    def blocks(self, start: bytes, stop: bytes) -> Iterator[list[Row]]:
        self._count(start)
        return self._reader.blocks(start, stop)


def conversation(count: int, seed: int = 1) -> list[Post]:
    """Return texts and joins. Some pairs are concurrent; the next post links to both posts of a pair."""
    rng, posts, heads = Random(seed), list[Post](), tuple[bytes, ...]()
    for number in range(count):
        body = Join("default") if rng.random() < 0.2 else Text("default", f"{number}")
        posts.append(rng.choice((ANN, BOB, CYD)).post(body, at=START_MS + 1000 * number, links=heads))
        heads = (*heads[-1:], posts[-1].hash) if rng.random() < 0.15 else (posts[-1].hash,)
    return posts


def texts_of(posts: Sequence[Post]) -> list[bytes]:
    return [post.hash for post in posts if isinstance(post.body, Text)]


def holding(posts: Sequence[Post]) -> CableStore:
    store = CableStore.in_memory(options=StoreOptions(clock=lambda: START_MS))
    store.ingest(raws(*posts))
    return store


def page(
    store: CableStore, size: int, *, newest_first: bool = True, cache: PositionCache | None = None
) -> tuple[list[bytes], Counter[str]]:
    """Return the first page of a store, by default with an empty cache, and the number of reads by kind."""
    with store.snapshot() as state:
        source = CountingSource(state.reader)
        reader = state.reader.over(source)
        order = MessageOrder(reader, "default", (cache or PositionCache()).of(reader))
        rows = order.texts(None, newest_first=newest_first, at_once=size)
        found = [digest for (_, digest), _ in zip(rows, range(size), strict=False)]
        assert all(order.post(digest) for digest in found)
        return found, source.reads


@pytest.mark.parametrize("newest_first", [True, False])
def test_a_page_reads_no_links_if_clocks_agree(*, newest_first: bool) -> None:
    """A page reads each of its posts once, joins between them too, and a few posts after its end."""
    posts = conversation(600)
    with holding(posts) as store:
        found, reads = page(store, 100, newest_first=newest_first)
    expected = texts_of(posts)
    assert found == (expected[::-1] if newest_first else expected)[:100]
    assert reads["link"] == 0
    assert reads["data"] <= 150


def test_a_page_reads_links_only_near_a_reply_with_a_slow_clock() -> None:
    posts = conversation(600)
    question = next(post for post in posts[590:] if isinstance(post.body, Text))
    slow = CYD.text("default", "slow", at=START_MS - FAR_MS, links=(question.hash,))
    end = ANN.text("default", "end", at=START_MS + 700_000, links=(slow.hash, posts[-1].hash))
    with holding([*posts, slow, end]) as store:
        found, reads = page(store, 100)
    assert found[found.index(slow.hash) + 1] == question.hash
    assert 0 < reads["link"] < 60


@pytest.mark.parametrize(
    ("limit", "value"),
    [("MAX_ENDS_READ", 0), ("MAX_ROWS_AHEAD", 2), ("MAX_KNOWN_POSITIONS", 3), ("MAX_ARRIVALS_FOLLOWED", 0)],
)
def test_limits_of_reads_and_caches_do_not_change_the_order(
    limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    posts = conversation(120)
    heads = [BOB.text("default", f"head {number}", at=START_MS + 200_000 + number) for number in range(3)]
    slow = CYD.text("default", "slow", at=START_MS - FAR_MS, links=(posts[40].hash, posts[41].hash))
    with holding([*posts, slow, *heads]) as store:
        expected = [message.hash for message in store.messages("default", 1000).messages]
    monkeypatch.setattr(limits, limit, value)
    with holding([*posts, slow]) as store:
        found, cursor = list[bytes](), None
        for head in (*heads, None):
            if head is not None:
                store.ingest(raws(head))
            messages = store.messages("default", 28, cursor=cursor)
            found += [message.hash for message in messages.messages]
            cursor = messages.cursor
        assert found == expected[len(heads) - 1 :]  # only the first head arrived before the first page
    with holding(posts) as store:
        has_few_ends = limit != "MAX_ENDS_READ"
        assert has_few_ends == (page(store, 50)[1]["link"] < 50)


def model(posts: Sequence[Post]) -> list[bytes]:
    """Return the hashes of texts in the order of `store.message_order`. `posts` must be sorted by links."""
    places: dict[bytes, tuple[int, int]] = {}
    for post in posts:  # each follows the posts that it links to
        before = [places[link] for link in post.links if link in places]
        own_ms = post.timestamp_ms if isinstance(post.body, Text) else -1
        time_ms = max([own_ms, *(at for at, _ in before)])
        places[post.hash] = time_ms, max((steps + 1 for at, steps in before if at == time_ms), default=0)
    texts = (post for post in posts if isinstance(post.body, Text))
    return [p.hash for p in sorted(texts, key=lambda p: (*places[p.hash], p.timestamp_ms, p.hash))]


def check_pages_between_arrivals(count: int, size: int, rng: Random) -> None:
    """Posts arrive in batches of different sizes, some of them late. Pages in both directions are read in between."""
    posts = conversation(count, rng.randrange(1000))
    for number in range(rng.randrange(3)):
        linked = rng.sample(posts, min(2, len(posts)))
        at_ms = START_MS + rng.choice((-FAR_MS, FAR_MS, 0, 1000 * rng.randrange(count)))
        posts.append(CYD.text("default", f"late {number}", at=at_ms, links=tuple(post.hash for post in linked)))
    arriving = sorted(posts, key=lambda post: posts.index(post) + rng.choice((0, 0, 0, 5)))
    sort_times = {post.hash: post.sort_time.decode() for post in posts}
    with CableStore.in_memory(options=StoreOptions(clock=lambda: START_MS)) as store:
        while arriving:
            batch = rng.choice((1, 1, 3, 20))
            store.ingest(raws(*arriving[:batch]))
            arriving = arriving[batch:]
            expected = model([post for post in posts if post not in arriving])
            for newest_first in (True, False, True):
                wanted = expected[::-1] if newest_first else expected
                at = rng.randrange(-1, len(wanted))
                cursor = None if at < 0 else MessageCursor(sort_times[wanted[at]])
                found = store.messages("default", size, cursor=cursor, newest_first=newest_first).messages
                assert [message.hash for message in found] == wanted[at + 1 :][:size]


@pytest.mark.parametrize("seed", range(40))
def test_pages_between_a_few_arrivals_have_the_order_of_a_new_store(seed: int) -> None:
    check_pages_between_arrivals(2 + seed // 2, 1 + seed % 5, Random(seed))


@pytest.mark.thorough
@given(st.integers(2, 40), st.integers(1, 9), st.randoms(use_true_random=False))
def test_pages_between_arrivals_have_the_order_of_a_new_store(count: int, size: int, rng: Random) -> None:
    check_pages_between_arrivals(count, size, rng)


@pytest.mark.parametrize("newest_first", [True, False])
def test_a_page_that_is_read_again_reads_only_what_arrived_since(*, newest_first: bool) -> None:
    posts, cache = conversation(300), PositionCache()
    new = ANN.text("default", "new", at=START_MS + 1_000_000, links=(posts[-1].hash,))
    newest = BOB.text("default", "newest", at=START_MS + 1_000_001, links=(new.hash,))
    arrivals: list[tuple[Callable[[], object], int, int]] = [
        (lambda: None, 0, 0),
        (lambda: store.local.set_draft("default", "a draft"), 0, 0),
        (lambda: store.ingest(raws(new)), 1, 2),
        (lambda: store.ingest(raws(newest)), 1, 2),
        (lambda: store.ingest(raws(ANN.text("other", "text", at=START_MS))), 1, 1),
        (lambda: None, 0, 0),
    ]
    with holding(posts) as store:
        _, cold = page(store, 50, newest_first=newest_first, cache=cache)
        assert 51 < cold["data"] < 70  # each post of the page once, its joins, and the next text
        assert cold["link"] == 0
        for arrive, posts_read, links_read in arrivals:
            arrive()
            found, reads = page(store, 50, newest_first=newest_first, cache=cache)
            assert (reads["data"], reads["head"]) == (50 + posts_read, 0)
            assert reads["link"] <= links_read
        texts = texts_of([*posts, new, newest])
        assert found == (texts[::-1] if newest_first else texts)[:50]


def test_claimed_links_of_deleted_posts_may_be_cyclic(tmp_path: Path) -> None:
    """A skeleton in an export claims a link from a deleted post to a text that links to the deleted post."""
    gone = BOB.text("default", "gone", at=START_MS)
    text = ANN.text("default", "text", at=START_MS + 1, links=(gone.hash,))
    early = CYD.text("default", "early", at=START_MS - 1, links=(text.hash, gone.hash))
    deletion = BOB.delete(gone)
    said = Skeleton(0, START_MS, "default", (early.hash, gone.hash))
    stone = Tombstone(gone.hash, deletion.author, deletion.timestamp_ms, deletion.hash, said)
    export = forge(tmp_path / "export", [text, early, deletion], [stone], LEGACY)
    with CableStore.in_memory(options=StoreOptions(clock=lambda: START_MS)) as store:
        store.import_exports([export])
        for newest_first in (True, False):
            found = store.messages("default", newest_first=newest_first).messages
            assert {message.text for message in found} == {"text", "early"}
            assert len(found) == 2
        assert len(list(store.causal_messages("default", 0))) == 2


@pytest.mark.parametrize("newest_first", [True, False])
def test_pages_around_a_dropped_post_have_every_message(*, newest_first: bool) -> None:
    """A reply to a dropped post by a user with a slow clock is at its own time on every page."""
    question = ANN.text("default", "question", at=START_MS)
    dropped = BOB.text("default", "dropped", at=START_MS + 1, links=(question.hash,))
    slow = CYD.text("default", "slow", at=START_MS - 50, links=(dropped.hash,))
    end = CYD.text("default", "end", at=START_MS + 9, links=(slow.hash,))
    expected = [slow.hash, question.hash, end.hash][:: -1 if newest_first else 1]
    with holding([question, dropped, slow, end]) as store:
        store.moderation.drop(users=[BOB.key])
        for at in range(-1, 2):
            cursor = None
            if at >= 0:
                cursor = next(m.cursor for m in store.messages("default").messages if m.hash == expected[at])
            with store.snapshot() as state:
                order = MessageOrder(state.reader, "default", KnownPositions())
                place = None if cursor is None else cursor.encode()
                assert [digest for _, digest in order.texts(place, newest_first=newest_first)] == expected[at + 1 :]
