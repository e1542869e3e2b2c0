"""Coverage of a comparison: a live request gets changes since the compared state, or the history."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from random import Random

from by_hand import on_standing_loop
from clock import pass_time
from history import histories
from hypothesis import given
from hypothesis import strategies as st
from peering import HOST, memory, run, soon, until
from people import ANN, START_MS, raws
from waiting import LIMIT_S

from cablestore import LEGACY, Dialect, Post, limits
from cablestore.index.log_position import LogPosition
from cablestore.index.reader import Reader
from cablestore.peers import Address, Node
from cablestore.peers.answering import items_of
from cablestore.peers.coverage import Coverage
from cablestore.peers.live_changes import MAX_ENTRIES, hashes_since
from cablestore.protocol.acts import Action
from cablestore.protocol.body import PUBLIC, Moderation
from cablestore.protocol.message import (
    FrameReader,
    ListRequest,
    ModerationRequest,
    Request,
    StateRequest,
    TimeRangeRequest,
    decode_message,
    encode_message,
)
from cablestore.protocol.recognition import REQUESTS, Greeter
from cablestore.reconcile.messages import SNAPSHOT, Terms

PLACE = LogPosition("db", 7, b"")
LIVE = TimeRangeRequest(b"", "default", 0, 0, 0)


def answer(reader: Reader, request: Request) -> set[bytes]:
    return set(items_of(reader, request, may_be_cable_js=False))


@given(histories(), st.integers(0, 2**32).map(Random))
def test_compared_posts_and_later_posts_are_the_state(history: tuple[Dialect, list[Post]], choice: Random) -> None:
    dialect, posts = history
    posts = [post for post in posts if not post.is_local_only]
    choice.shuffle(posts)
    cut = choice.randint(0, len(posts))
    channels = sorted({post.channel for post in posts if post.channel})
    requests: list[Request] = [ModerationRequest(b"", tuple(channels), 1, 0)]
    for channel in channels:
        requests += [StateRequest(b"", channel, 1), TimeRangeRequest(b"", channel, 0, 0, 0)]
    with memory("a", dialect, posts[:cut]) as store:
        place = store.parts.engine.place
        compared = {post.hash for post in posts[:cut] if store.get(post.hash) is not None}
        for post in posts[cut:]:
            store.ingest([post.raw])
        with store.snapshot() as state:
            for request in requests:
                new = hashes_since(state.reader, request, place)
                found = answer(state.reader, request) if new is None else set(new)
                assert answer(state.reader, request) <= compared | found, request


def test_an_action_that_was_undone_before_it_arrived_is_not_announced() -> None:
    recipients = (bytes(32),)
    hidden, shown = (
        ANN.post(Moderation("", PUBLIC, "default", recipients, action), at=START_MS + at)
        for at, action in ((1, Action.HIDE_USER), (2, Action.UNHIDE_USER))
    )
    with memory("a", posts=[ANN.join("default"), shown]) as store:
        place = store.parts.engine.place
        store.ingest([hidden.raw])
        with store.snapshot() as state:
            assert hashes_since(state.reader, StateRequest(b"", "default", 1), place) == []


def test_too_many_later_entries_or_another_database_require_the_history() -> None:
    texts = [ANN.text("default", f"{number}", at=START_MS + number) for number in range(MAX_ENTRIES + 1)]
    with memory("a", posts=[ANN.text("default", "first")]) as store:
        place = store.parts.engine.place
        store.ingest(raws(*texts[:-1]))
        with store.snapshot() as state:
            assert set(hashes_since(state.reader, LIVE, place) or []) == {text.hash for text in texts[:-1]}
            assert hashes_since(state.reader, LIVE, place._replace(entry=b"another")) is None
        store.ingest(raws(texts[-1]))
        with store.snapshot() as state:
            assert hashes_since(state.reader, LIVE, place) is None


def test_only_ranges_that_both_sides_compare_are_answered_without_history() -> None:
    coverage = Coverage()
    assert coverage.since(LIVE) is None
    assert coverage.read(Terms(from_ms=100, channels=frozenset(["default"])), PLACE) == [SNAPSHOT]
    assert coverage.since(LIVE) is None  # the peer may have an older version
    coverage.known_there()
    for request, is_covered in (
        (LIVE, False),
        (LIVE._replace(time_start_ms=100), True),
        (LIVE._replace(time_start_ms=100, time_end_ms=200), False),
        (LIVE._replace(time_start_ms=100, channel="other"), False),
        (StateRequest(b"", "default", 1), False),
        (ModerationRequest(b"", ("default",), 1, 100), True),
        (ModerationRequest(b"", ("default", "other"), 1, 100), False),
        (ListRequest(b"", 0, 0), False),
    ):
        assert coverage.since(request) == (PLACE if is_covered else None), request
    # A state has posts of any time, so each later beginning of a comparison leaves some out.
    for from_ms in (0, 1):
        coverage.read(Terms(from_ms=from_ms, channels=frozenset(["default"])), PLACE)
        assert coverage.since(StateRequest(b"", "default", 1)) == (None if from_ms else PLACE)
    coverage.read(Terms(from_ms=100, channels=frozenset(["default"])), PLACE)
    # Older posts are compared next. The position of the first comparison is that of all later ones.
    assert coverage.read(Terms(until_ms=100, channels=frozenset(["default"])), PLACE._replace(sequence=9)) == [SNAPSHOT]
    assert coverage.since(LIVE) == PLACE
    assert coverage.read(Terms(from_ms=50, until_ms=60), PLACE) == []  # the recent ones, now and then
    assert coverage.since(LIVE) == PLACE
    coverage.end(failed=True)
    assert coverage.since(LIVE) is None


def test_covered_posts_have_a_start_and_channels() -> None:
    coverage = Coverage()
    assert (coverage.is_all, coverage.from_ms) == (False, 0)
    assert not coverage.has("default")
    assert not coverage.reaches("default", 0)
    for terms, is_all in (
        (Terms(), True),
        (Terms(from_ms=100), False),
        (Terms(channels=frozenset(["default"])), False),
        (Terms(from_ms=100, channels=frozenset(["default"])), False),
    ):
        coverage.read(terms, PLACE)
        assert (coverage.is_all, coverage.from_ms) == (is_all, terms.from_ms)
        assert coverage.has("default") is (coverage.since(LIVE._replace(time_start_ms=100)) is not None)
        assert coverage.reaches("default", 100)
        assert coverage.reaches("default", 99) is (terms.from_ms == 0)
        assert coverage.reaches("other", 100) is (terms.channels is None)
        coverage.known_there()
        assert coverage.has("default")
        assert coverage.has("other") is (terms.channels is None)
        assert coverage.since(LIVE._replace(time_start_ms=100, time_end_ms=1)) is None  # this request is not live
    coverage.end(failed=False)
    assert coverage.has("default")
    coverage.end(failed=True)
    assert (coverage.is_all, coverage.from_ms, coverage.has("default")) == (False, 0, False)
    assert coverage.read(Terms(until_ms=100), PLACE) == []  # there is nothing that it extends
    assert coverage.read(Terms(), PLACE) == [SNAPSHOT]


@on_standing_loop
async def test_waits_count_only_the_time_without_a_comparison() -> None:
    coverage = Coverage()
    for wait in (coverage.shared, coverage.rest):
        waits = asyncio.ensure_future(wait(5.0))
        await pass_time(4.0)
        coverage.begin()
        await pass_time(20.0, step_s=1.0)
        assert not waits.done()
        coverage.end(failed=False)
        await pass_time(4.0)
        assert not waits.done()
        await pass_time(2.0)
        await soon(waits)
    failure = asyncio.ensure_future(coverage.failure())
    for failed in (False, True):
        coverage.begin()
        coverage.end(failed=failed)
        await pass_time(20.0, step_s=1.0)
        assert failure.done() is failed
    waits = asyncio.ensure_future(coverage.failure())  # the failure was handled
    await pass_time(1.0)
    assert not waits.done()
    coverage.end(failed=True)
    await soon(waits)
    coverage.end(failed=True)
    await soon(coverage.rest(5.0))
    waits = asyncio.ensure_future(coverage.rest(5.0))
    await pass_time(4.0)
    assert not waits.done()
    await pass_time(2.0)
    await soon(waits)


def test_the_wait_for_both_states_ends_when_the_second_side_has_read_its_state() -> None:
    async def scenario() -> None:
        for order in (("there", "here"), ("here", "there"), ("there", "failure")):
            coverage = Coverage()
            steps: dict[str, Callable[[], object]] = {
                "there": coverage.known_there,
                "here": partial(coverage.read, Terms(), PLACE),
                "failure": partial(coverage.end, failed=True),
            }
            coverage.begin()
            shared = asyncio.ensure_future(coverage.shared(LIMIT_S))
            for step in order:
                for _ in range(10):
                    await asyncio.sleep(0)
                assert not shared.done()
                steps[step]()
            await soon(shared)

    run(scenario())


def test_the_wait_for_rest_ends_after_the_comparison() -> None:
    async def scenario() -> None:
        coverage = Coverage()
        await soon(coverage.rest(0.01))
        for failed in (False, True):
            coverage.begin()
            rest = asyncio.ensure_future(coverage.rest(0.01))
            await asyncio.sleep(0.1)
            assert not rest.done()
            coverage.end(failed=failed)
            await soon(rest)

    run(scenario())


@on_standing_loop
async def test_a_peer_that_greets_without_comparing_is_asked_over_cable() -> None:
    """COMPARISON_WAIT_S."""
    with memory("a", posts=[ANN.text("default", "x")]) as store:
        async with Node(store) as node:
            reader, writer = await asyncio.open_connection(*await node.listen(Address(HOST, 0)))
            greeter, frames = Greeter(random.randbytes), FrameReader()
            writer.write(b"".join(encode_message(ListRequest(greeter(4), 0, 1), LEGACY) for _ in range(REQUESTS)))
            received: set[type] = set()

            async def hear() -> None:
                while TimeRangeRequest not in received:
                    found = frames.feed(await reader.read(65_536))
                    received.update(type(decode_message(frame, LEGACY)) for frame in found)

            hearing = asyncio.create_task(hear())
            await until(lambda: received)
            await pass_time(limits.COMPARISON_WAIT_S / 2)
            assert TimeRangeRequest not in received
            while not hearing.done():
                await pass_time(1.0)
                await asyncio.to_thread(lambda: None)
            writer.close()
