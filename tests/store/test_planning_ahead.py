"""Batches that are planned during verification have the same outcomes and rows as batches that are verified first."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import cycle
from typing import Any

import pytest
from history import AUTHORS, NOW_MS, histories, long_history
from hypothesis import given
from hypothesis import strategies as st
from people import ANN, BOB, raws

from cablestore import LEGACY, Block, CableStore, Dialect, Outcome, Post, StoreOptions, Verdict
from cablestore.errors import CableStoreError, StoreClosedError
from cablestore.index.view import View
from cablestore.moderation import Action, UserRole
from cablestore.protocol import crypto
from cablestore.protocol.body import TEXT, Body, Delete, Info, Moderation, Role, Text, Topic
from cablestore.protocol.post import encode_post
from cablestore.store import intake
from cablestore.views import CATALOG

pytestmark = pytest.mark.skipif(crypto.EXTENSION is None, reason="the extension was not built")

V = Verdict
WAYS = ("good", "good", "good", "forged", "malformed", "twice")


def forged(post: Post) -> bytes:
    """Return a post with one bit of its signature changed."""
    return post.raw[:40] + bytes([post.raw[40] ^ 1]) + post.raw[41:]


def arriving(posts: list[Post], ways: list[str]) -> list[bytes]:
    """Return the bytes of posts: each valid, forged, malformed, or twice."""
    came = []
    for post, way in zip(posts, ways, strict=False):
        if way == "forged":
            came.append(forged(post))
        elif way == "malformed":
            came.append(post.raw[:-1])
        else:
            came += [post.raw] * (2 if way == "twice" else 1)
    return came


def opened(threads: int, dialect: Dialect, **options: Any) -> CableStore:
    """Open a store whose user, Ann, requested mentions and read a channel: both add rows to later posts."""
    store = CableStore.in_memory(
        dialect=dialect,
        identity=AUTHORS[0],
        options=StoreOptions(verify_threads=threads, clock=lambda: NOW_MS + 1, **options),
    )
    store.find_mentions()
    store.mark_read("default")
    return store


def state(store: CableStore) -> list[tuple[bytes, bytes]]:
    """Return every row of the database, including local rows and the arrival log."""
    with store.snapshot() as snapshot:
        return list(snapshot.reader.scan(b"", b"\xff"))


def both(dialect: Dialect, posts: list[bytes], sizes: list[int], **options: Any) -> list[Outcome]:
    """Store posts with two threads and with one, in calls and streams of different sizes, and compare the stores."""
    found = []
    for threads in (1, 2):
        with opened(threads, dialect, **options) as store:
            outcomes: list[Outcome] = []
            for number, at in enumerate(range(0, len(posts), 50)):
                size = sizes[number % len(sizes)]
                some = posts[at : at + 50]
                if number % 2:
                    outcomes += store.ingest(some, batch_posts=size)
                else:
                    for start in range(0, len(some), size):
                        outcomes += store.ingest(some[start : start + size])
            assert store.check().is_clean
            found.append((outcomes, state(store), store.mentions().messages))
    assert found[0] == found[1]
    return found[0][0]


@pytest.fixture
def no_caution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan every batch ahead, even after forged posts."""
    monkeypatch.setattr(intake, "_CAUTIOUS_BATCHES", 0)


@pytest.mark.thorough
@pytest.mark.usefixtures("no_caution")
@given(
    histories(),
    st.lists(st.sampled_from(WAYS), min_size=24, max_size=24),
    st.lists(st.integers(1, 50), min_size=1, max_size=3),
    st.booleans(),
)
def test_several_threads_have_the_outcomes_and_rows_of_one(
    history: tuple[Dialect, list[Post]], ways: list[str], sizes: list[int], moderated: bool
) -> None:
    dialect, posts = history
    both(dialect, [*arriving(posts, ways), *raws(*posts)], sizes, moderated=moderated)


@pytest.mark.parametrize("caution", [0, 3, 100])
def test_a_long_history_has_the_outcomes_and_rows_of_one_thread(
    rng: random.Random, monkeypatch: pytest.MonkeyPatch, caution: int
) -> None:
    monkeypatch.setattr(intake, "_CAUTIOUS_BATCHES", caution)
    posts = long_history(rng, 300)
    came = arriving(posts, rng.choices(WAYS, k=len(posts)))
    outcomes = both(LEGACY, came, [1, 7, 50])
    assert {outcome.verdict for outcome in outcomes} >= {V.ACCEPTED, V.BAD_SIGNATURE, V.MALFORMED, V.DUPLICATE}


# --- forged posts ----------------------------------------------------------------------------------


def test_forged_posts_leave_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "_CAUTIOUS_BATCHES", 0)
    own = AUTHORS[0]
    with CableStore.in_memory(
        identity=own, options=StoreOptions(verify_threads=2, clock=lambda: NOW_MS - 1000)
    ) as store:
        store.set_name("ann")
        kept, known = BOB.text("default", "kept, @ann"), BOB.text("default", "of @queen")
        store.ingest(raws(kept, known))
        store.find_mentions()
        bodies: list[Body] = [
            Delete((kept.hash,)),
            Info.of(name="queen"),
            Role("", 0, "", BOB.key, UserRole.ADMIN.in_post),
            Moderation("", 0, "default", (), Action.DROP_CHANNEL),
            Moderation("", 0, "", (kept.hash,), Action.DROP_POST),
            Block("", 0, (BOB.key,), 1, 1),
            Topic("default", "forged"),
            Text("default", "forged"),
        ]
        posts = [
            encode_post(body, links=(), timestamp_ms=NOW_MS, identity=identity, dialect=store.dialect)
            for body in bodies
            for identity in (own, BOB.identity)
        ]
        before, decided, mentions = state(store), store.moderation.decisions, store.mentions().messages
        for batch in ([posts[0]], [posts[5]], posts):
            assert {outcome.verdict for outcome in store.ingest([forged(post) for post in batch])} == {V.BAD_SIGNATURE}
            for post in batch:
                store.ingest([forged(post)])
        assert state(store) == before
        assert store.moderation.decisions is decided
        assert store.mentions().messages == mentions
        after = BOB.text("default", "@ann again"), BOB.text("default", "@queen again")
        store.ingest(raws(*after))  # mentions are still found by the earlier names
        assert [message.hash for message in store.mentions().messages] == [after[0].hash, kept.hash]
        assert store.check().is_clean


def test_few_batches_are_planned_twice_while_forged_posts_arrive() -> None:
    planned: list[Post] = []

    def noting(post: Post) -> list[tuple[bytes, bytes]]:
        planned.append(post)
        return [(b"!x!own!" + post.hash_hex, b"")]

    catalog = CATALOG.extended([View("own", 1, (b"!x!own!",), "", types=frozenset({TEXT}), rows=noting)])
    posts = [BOB.text("default", str(number)) for number in range(500)]
    with CableStore.in_memory(options=StoreOptions(catalog=catalog, verify_threads=2)) as store:
        for post in posts:
            store.ingest([forged(post)])
        assert 1 <= len(planned) <= 1 + len(posts) // 100
        planned.clear()
        for post in posts:
            store.ingest([post.raw])
        assert len(planned) == len(posts)


def refusing(post: Post) -> list[tuple[bytes, bytes]]:
    """Return the row of a text, or raise an error for one text."""
    if isinstance(post.body, Text) and post.body.text == "defect":
        raise RuntimeError("a defect of a view")
    return [(b"!x!own!" + post.hash_hex, b"")]


def test_an_error_of_a_plan_is_raised_only_if_the_signatures_are_valid() -> None:
    catalog = CATALOG.extended([View("own", 1, (b"!x!own!",), "", types=frozenset({TEXT}), rows=refusing)])
    good, bad = ANN.text("default", "good"), ANN.text("default", "defect")
    with CableStore.in_memory(options=StoreOptions(catalog=catalog, verify_threads=2)) as store:
        assert [outcome.verdict for outcome in store.ingest([good.raw, forged(bad)])] == [V.ACCEPTED, V.BAD_SIGNATURE]
    with CableStore.in_memory(options=StoreOptions(catalog=catalog, verify_threads=2)) as store:
        before = state(store)
        with pytest.raises(CableStoreError, match=r"the view own failed on the post .* a defect"):
            store.ingest(raws(good, bad))
        assert state(store) == before
        assert [outcome.verdict for outcome in store.ingest(raws(good))] == [V.ACCEPTED]


# --- threads ---------------------------------------------------------------------------------------


def test_many_threads_can_store_posts_concurrently(rng: random.Random) -> None:
    posts = [person.text("default", str(number)) for number in range(150) for person in (ANN, BOB)]
    with CableStore.in_memory(options=StoreOptions(verify_threads=3)) as store, ThreadPoolExecutor(6) as pool:

        def work(seed: int) -> int:
            own = random.Random(seed)
            accepted, left = 0, posts[seed::6]
            while left:
                size = own.randint(1, 9)
                some, left = left[:size], left[size:]
                found = store.ingest([raw for post in some for raw in (forged(post), post.raw)])
                assert [outcome.verdict for outcome in found] == [V.BAD_SIGNATURE, V.ACCEPTED] * len(some)
                accepted += len(some)
            return accepted

        assert sum(pool.map(work, range(6))) == len(posts)
        assert store.stats().posts == {"text": len(posts)}
        assert store.check(signatures=True).is_clean


def test_a_store_can_be_closed_while_posts_are_verified() -> None:
    posts = [BOB.text("default", str(number)).raw for number in range(200)]
    for _ in range(5):
        store = CableStore.in_memory(options=StoreOptions(verify_threads=2))
        begun = threading.Event()

        def work(store: CableStore, begun: threading.Event) -> None:
            with suppress(StoreClosedError):
                for size in cycle((1, 50)):
                    store.ingest(posts[:size])
                    begun.set()

        with ThreadPoolExecutor(1) as pool:
            working = pool.submit(work, store, begun)
            begun.wait()
            store.close()
            working.result()
