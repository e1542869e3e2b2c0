"""A node whose clock is corrected: rejected posts arrive, one warning is logged, memory is bounded."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from by_hand import CABAL_KEY, on_loop
from clock import SetClock
from hypothesis import given
from hypothesis import strategies as st
from peering import QUICK, Network, memory, network, until, with_key
from people import ANN, BOB

from cablestore import limits
from cablestore.peers import NodeSettings
from cablestore.peers.early_posts import EarlyPosts
from cablestore.protocol.crypto import post_hash

pytestmark = pytest.mark.usefixtures("quick_clock")

NOW_MS = int(time.time() * 1000)
YEARS_MS = 5 * 365 * 86_400_000
WARNING = "posts are dated in the future. Check the clock"
RECONCILING = replace(QUICK, reconciles=True, reconcile_delay_ms=50, reconcile_every_s=3600.0)
CHATTING = tuple(ANN.text("default", f"text {number}", at=NOW_MS + number) for number in range(300))


@pytest.mark.thorough("fetch-encrypted", "reconcile-encrypted")
@pytest.mark.parametrize("key", [None, CABAL_KEY], ids=["plain", "encrypted"])
@pytest.mark.parametrize("settings", [QUICK, RECONCILING], ids=["fetch", "reconcile"])
@on_loop
async def test_present_posts_arrive_after_a_slow_clock_is_corrected(settings: NodeSettings, key: bytes | None) -> None:
    clock = SetClock(NOW_MS - YEARS_MS)
    behind, right = memory("behind", clock=clock), memory("right", posts=CHATTING, clock=lambda: NOW_MS + 1000)
    async with network(behind, right, settings=with_key(settings, key), may_complain=True) as net:
        await net.link(*net.nodes)
        await until(lambda: any(record.getMessage() == WARNING for record in net.log.records))
        await until(lambda: net.nodes[0].load().early_posts == len(CHATTING))
        assert behind.get(CHATTING[0].hash) is None
        clock.now_ms = NOW_MS + 1000
        await net.are_alike()
        await until(lambda: net.nodes[0].load().early_posts == 0)
        warnings = [vars(record) for record in net.log.records if record.getMessage() == WARNING]
        assert len(warnings) == 1, warnings
        messages = [record.getMessage() for record in net.log.records]
        assert messages.count("the clock was set, or the machine slept") == 1


@on_loop
async def test_reconciliations_do_not_transfer_rejected_posts_repeatedly() -> None:
    clock = SetClock(NOW_MS - YEARS_MS)
    behind, right = memory("behind", clock=clock), memory("right", posts=CHATTING, clock=lambda: NOW_MS + 1000)
    async with network(behind, right, settings=RECONCILING, may_complain=True) as net:
        await net.link(*net.nodes)
        await until(lambda: net.nodes[0].load().early_posts == len(CHATTING))
        sizes_bytes = []
        for number in range(4):
            compared = number_of_reconciliations(net)
            behind.post("default", f"written with the wrong clock {number}")
            await until(lambda before=compared: number_of_reconciliations(net) > before + 1)  # type: ignore[misc] # the argument has its default
            sizes_bytes.append(net.nodes[0].load().received_size_bytes)
        assert sizes_bytes[-1] - sizes_bytes[0] < sum(len(post.raw) for post in CHATTING) / 2


def number_of_reconciliations(net: Network) -> int:
    return sum(record.getMessage() == "reconciled" for record in net.log.records)


@on_loop
async def test_a_post_dated_too_far_ahead_arrives_at_its_time() -> None:
    """Nothing else is requested: other posts of the peer are known, and the clock does not change."""
    first_refused_ms = NOW_MS + limits.MAX_FUTURE_MS
    clock = SetClock(NOW_MS)
    post = ANN.text("default", "from next week", at=first_refused_ms + 5_000)
    early, late = memory("early", clock=clock), memory("late", posts=(post,), clock=lambda: NOW_MS + 10_000)
    async with network(early, late, may_complain=True) as net:
        await net.link(*net.nodes)
        await until(lambda: net.nodes[0].load().early_posts == 1)
        clock.now_ms += 5_000
        await until(lambda: net.nodes[0].load().early_posts == 1)
        assert early.get(post.hash) is None
        clock.now_ms += 1
        await net.are_alike()
        assert "the clock was set" not in str([record.getMessage() for record in net.log.records])


@on_loop
async def test_a_post_arrives_from_another_peer_if_its_sender_is_lost() -> None:
    clock = SetClock(NOW_MS)
    posts = (BOB.text("default", "now", at=NOW_MS), ANN.text("default", "ahead", at=NOW_MS + limits.MAX_FUTURE_MS))
    early = memory("early", clock=clock)
    others = [memory(name, posts=posts, clock=lambda: NOW_MS + 10_000) for name in ("one", "other")]
    async with network(early, *others, may_complain=True) as net:
        first = await net.link(net.nodes[0], net.nodes[1])
        await until(lambda: net.nodes[0].load().early_posts == 1)
        await net.link(net.nodes[0], net.nodes[2])
        await until(lambda: len(net.nodes[2].connections) == 1)
        first.end("it leaves")
        await until(first.closed.done)
        clock.now_ms += 5_000
        await net.are_alike()


@on_loop
async def test_a_clock_that_was_ahead_is_reported_when_it_is_set_back() -> None:
    clock = SetClock(NOW_MS + YEARS_MS)
    store = memory("ahead", clock=clock)
    store.post("default", "written with the wrong clock")
    async with network(store, may_complain=True) as net:
        clock.now_ms = NOW_MS
        await until(lambda: any(record.getMessage() == WARNING for record in net.log.records))
        [warning] = [vars(record) for record in net.log.records if record.getMessage() == WARNING]
        assert warning["stored"] == len(list(store.posts_by(store.identity.public_key)))


@on_loop
async def test_a_clock_before_the_posts_of_the_store_is_reported_at_the_start() -> None:
    """The clock of the machine starts in 1970."""
    clock = SetClock(NOW_MS + 1000)
    store = memory("behind", posts=CHATTING, clock=clock)
    clock.now_ms = 0
    async with network(store, may_complain=True) as net:
        await until(lambda: any(record.getMessage() == WARNING for record in net.log.records))
        [warning] = [vars(record) for record in net.log.records if record.getMessage() == WARNING]
        assert warning["stored"] == len(CHATTING)


DIFFERS = "the clock differs from the clocks of other users. Check the clock"


@on_loop
async def test_a_clock_that_differs_by_hours_is_reported_when_peers_write() -> None:
    """The difference is reported once. Posts are not rejected, because they are dated less than a week ahead."""
    clock = SetClock(NOW_MS - 3 * 3_600_000)
    behind = memory("behind", clock=clock)
    others = [memory(name, clock=lambda: NOW_MS) for name in ("one", "other")]
    async with network(behind, *others, may_complain=True) as net:
        for node in net.nodes[1:]:
            await net.link(net.nodes[0], node)
        others[0].post("default", "one user may be wrong")
        await net.are_alike()
        assert behind.clock_difference() is None
        others[1].post("default", "two agree")
        await net.are_alike()
        clock.now_ms += 61_000  # as if the clock was set: it is compared immediately
        await until(lambda: any(record.getMessage() == DIFFERS for record in net.log.records))
        [warning] = [vars(record) for record in net.log.records if record.getMessage() == DIFFERS]
        assert (warning["users"], warning["ahead_s"] // 3600) == (2, -3)


# --- remembered posts --------------------------------------------------------------------------


def digest(number: int) -> bytes:
    return post_hash(b"%d" % number)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 50), st.integers(0, 3)), max_size=80), st.integers(1, 30))
def test_every_early_post_is_due_once_or_requested_again(refused: list[tuple[int, int, int]], most: int) -> None:
    """MAX_EARLY_POSTS: no more are remembered, and none is lost."""
    early: EarlyPosts[int] = EarlyPosts(most)
    due_ms: dict[bytes, int] = {}
    givers: dict[bytes, set[int]] = {}
    for number, time_ms, giver in refused:
        found = digest(number)
        due_ms.setdefault(found, time_ms)
        givers.setdefault(found, set()).add(giver)
        early.reject(found, due_ms[found], giver)
        assert len(early) <= most
    early.lose(0)
    taken: set[bytes] = set()
    for now_ms in range(51):
        due = early.take_due(now_ms)
        assert not any(giver == 0 for giver in due.hashes)
        found_now = {found for hashes in due.hashes.values() for found in hashes}
        assert all(due_ms[found] == now_ms for found in found_now)
        assert all(giver in givers[found] for giver, hashes in due.hashes.items() for found in hashes)
        assert not found_now & taken
        taken |= found_now
        missing = {found for found, time_ms in due_ms.items() if time_ms == now_ms} - found_now
        if missing and len(due_ms) <= most:
            assert not due.are_complete
    assert len(early) == 0


def test_too_many_early_posts_are_requested_from_peers_again() -> None:
    early: EarlyPosts[str] = EarlyPosts()
    for number in range(limits.MAX_EARLY_POSTS + 1):
        early.reject(digest(number), 1000 + number, "peer")
    assert len(early) == limits.MAX_EARLY_POSTS
    assert early.take_due(1000 + limits.MAX_EARLY_POSTS - 1).are_complete
    assert not early.take_due(1000 + limits.MAX_EARLY_POSTS).are_complete
    assert early.take_due(1001 + limits.MAX_EARLY_POSTS).are_complete


def test_the_first_of_further_early_posts_decides_when_channels_are_requested() -> None:
    early: EarlyPosts[str] = EarlyPosts(1)
    for number, due_ms in enumerate((10, 30, 20, 40)):
        early.reject(digest(number), due_ms, "peer")
    assert [early.take_due(now_ms).are_complete for now_ms in (10, 19, 20, 21)] == [True, True, False, True]


def test_a_limited_number_of_peers_is_remembered_for_an_early_post() -> None:
    """OFFERS_REMEMBERED."""
    early: EarlyPosts[int] = EarlyPosts()
    assert not early.is_early(digest(0), 0)
    early.reject(digest(0), 10, None)
    for sender in (0, *range(limits.OFFERS_REMEMBERED + 3)):
        assert early.is_early(digest(0), sender)
    assert early.take_due(10).hashes == {sender: [digest(0)] for sender in range(limits.OFFERS_REMEMBERED + 1)}
