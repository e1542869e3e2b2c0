"""A link that breaks repeatedly before all is compared: time ranges, newest first; finished ranges are kept."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from by_hand import CABAL_KEY, on_loop
from hypothesis import given
from hypothesis import strategies as st
from peering import run, until
from people import ANN, BOB, raws
from reconciling_nodes import ONLY, Cutter, are_alike, is_complete, once, two_nodes

from cablestore import CableStore, Post
from cablestore.peers import Address, Node
from cablestore.peers.sync_state import SyncMark, SyncState
from cablestore.peers.time_ranges import TimeRanges
from cablestore.reconcile.messages import Terms
from cablestore.store.options import system_clock_ms

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
ALL = Terms()


def time_ranges(marks: SyncState, terms: Terms = ALL, now_ms: int = NOW_MS, peer: str = "peer") -> TimeRanges:
    return TimeRanges(marks, peer, terms, now_ms=now_ms, keep_ms=DAY_MS)


def talked(
    marks: SyncState, rng: random.Random, terms: Terms, times: list[tuple[int, int | None]], lasts_ms: int
) -> bool:
    """Simulate one connection that completes conversations up to a length and breaks in the first longer one."""
    left = time_ranges(marks, terms)
    while (time_range := left.next) is not None:
        if (
            NOW_MS if time_range.until_ms is None else time_range.until_ms
        ) - time_range.from_ms > lasts_ms or rng.random() < 0.1:
            left.broke(has_moved=False)
            return False
        times.append((time_range.from_ms, time_range.until_ms))
        left.done()
    return True


@pytest.mark.parametrize("lasts_ms", [DAY_MS, 30 * DAY_MS, 3_650 * DAY_MS])
@pytest.mark.parametrize("from_ms", [0, NOW_MS - 100 * DAY_MS])
def test_time_ranges_cover_all_times_once_newest_first(lasts_ms: int, from_ms: int) -> None:
    """Over breaking connections and several processes, each range begins at the end of the last one."""
    rng = random.Random(f"time ranges {lasts_ms} {from_ms}")
    terms = Terms(from_ms=from_ms)
    marks, times = SyncState(None), list[tuple[int, int | None]]()
    connections = 1
    while not talked(marks, rng, terms, times, lasts_ms):
        connections += 1
        assert connections < 1_000_000
    assert times[0][1] is None
    assert times[-1][0] == from_ms
    assert all(one[0] == other[1] for one, other in pairwise(times))
    assert time_ranges(marks, terms).next == terms  # the next one covers all again


def test_a_peer_without_older_posts_ends_the_reconciliation() -> None:
    marks = SyncState(None)
    time_ranges(marks).broke(has_moved=False)
    left = time_ranges(marks)
    left.done()
    was_over = left.next is None
    left.is_over()
    assert (was_over, left.next) == (False, None)
    assert time_ranges(marks).next == ALL  # the next connection begins again


@pytest.mark.parametrize("shrunk", [0, 5, 30])
def test_links_that_last_for_one_conversation_each_complete_the_reconciliation(shrunk: int) -> None:
    """The next conversation begins when the link is about to break. That is not evidence of its length."""
    marks, connections = SyncState(None), 0
    for _ in range(shrunk):
        time_ranges(marks).broke(has_moved=False)
    while connections < 100:
        left = time_ranges(marks)
        left.done()
        if left.next is None:
            break
        left.broke(has_moved=False)
        connections += 1
    assert connections <= 64


def test_a_time_range_is_kept_while_posts_move() -> None:
    left = time_ranges(SyncState(None))
    left.broke(has_moved=True)
    assert left.next == ALL
    left.broke(has_moved=False)
    shorter = left.next
    assert shorter != ALL
    left.broke(has_moved=True)
    assert left.next == shorter


def test_a_broken_range_is_divided_by_four_and_each_complete_range_doubles_the_next() -> None:
    marks = SyncState(None)
    left, quarter_ms = time_ranges(marks), NOW_MS // 4
    left.broke(has_moved=False)
    assert left.next == Terms(from_ms=NOW_MS - quarter_ms)
    left.done()
    assert left.next == Terms(from_ms=NOW_MS - 3 * quarter_ms, until_ms=NOW_MS - quarter_ms)
    assert not left.was_begun
    left.broke(has_moved=False)  # the link lasted for one range
    assert left.next == Terms(from_ms=NOW_MS - 3 * quarter_ms, until_ms=NOW_MS - quarter_ms)
    again = time_ranges(marks)
    assert (again.next, again.was_begun, again.is_void) == (left.next, True, False)
    marks.clear()
    assert again.is_void
    again.broke(has_moved=False)
    again.done()
    assert time_ranges(marks).next == ALL  # posts of these ranges may have been lost


def test_the_shortest_range_is_a_millisecond() -> None:
    left = time_ranges(SyncState(None), Terms(from_ms=NOW_MS - 3))
    for _ in range(3):
        left.broke(has_moved=False)
        assert left.next == Terms(from_ms=NOW_MS - 1)


def test_an_uninterrupted_reconciliation_takes_one_conversation() -> None:
    left = time_ranges(SyncState(None))
    assert left.next == ALL
    left.done()
    assert left.next is None


def test_the_state_of_an_unfinished_reconciliation_is_kept_for_a_day(tmp_path: Path) -> None:
    """The state is on disk for a day from its beginning, for this peer and these terms.

    A file without marks can be read.
    """
    marks = SyncState(tmp_path)
    left = time_ranges(marks)
    for _ in range(8):
        left.broke(has_moved=False)
    left.done()
    reached = left.next
    assert reached is not None
    assert reached.until_ms is not None
    marks.save()
    again = SyncState(tmp_path)
    assert time_ranges(again, now_ms=NOW_MS + DAY_MS - 1).next == reached
    assert time_ranges(again, now_ms=NOW_MS + DAY_MS).next == ALL
    assert time_ranges(again, peer="another").next == ALL
    some = Terms(channels=frozenset({"a"}))
    assert time_ranges(again, some).next == some
    path = tmp_path / "peers.json"
    kept = json.loads(path.read_text())
    [mark] = kept["peers"]["peer"].values()
    assert mark.pop("range_ms") > 0
    path.write_text(json.dumps(kept))
    assert time_ranges(SyncState(tmp_path)).next == Terms(until_ms=reached.until_ms)


@given(
    st.builds(SyncMark, *[st.integers(-DAY_MS, 2 * NOW_MS) | st.integers(NOW_MS - DAY_MS, NOW_MS + DAY_MS)] * 4),
    st.integers(0, 2 * NOW_MS) | st.integers(NOW_MS - DAY_MS, NOW_MS + DAY_MS),
)
def test_time_ranges_from_any_mark_come_to_an_end(mark: SyncMark, from_ms: int) -> None:
    """The marks include one of terms that reached further back, and one of a damaged file."""
    terms, marks = Terms(from_ms=from_ms), SyncState(None)
    marks.put("peer", time_ranges(marks, terms)._name, mark)
    left = time_ranges(marks, terms)
    was_begun, times = left.was_begun, list[Terms]()
    while (time_range := left.next) is not None:
        assert time_range.until_ms is None or time_range.from_ms < time_range.until_ms
        times.append(time_range)
        left.done()
        assert len(times) < 1_000
    assert times
    assert times[-1].from_ms == from_ms
    assert was_begun == (times[0].until_ms is not None)
    assert time_ranges(marks, terms).next == terms


# --- over links that break ----------------------------------------------------------------------------

EACH = 800
"""Posts that only one side has. Between them are as many that both have."""


@pytest.fixture
def halves(tmp_path: Path) -> tuple[CableStore, CableStore]:
    """Create two stores with posts of a year: a third only in each store, and a third in both."""
    now_ms = system_clock_ms()
    step_ms = 365 * DAY_MS // (3 * EACH)
    kinds: list[list[Post]] = [[], [], []]
    for number in range(3 * EACH):
        kinds[number % 3].append(
            (ANN, BOB)[number % 2].text("default", f"{number}", at=now_ms - (1 + number) * step_ms)
        )
    stores = CableStore.open(tmp_path / "one"), CableStore.open(tmp_path / "other")
    for store, own in zip(stores, kinds, strict=False):
        store.ingest(raws(*own, *kinds[2]), verify=False)
    return stores


CUT_SIZE_BYTES = 16_000
"""Bytes that pass before the link breaks, including handshake and posts."""
LINKS = 400
"""More connections than are needed. Without progress the test ends here."""


@pytest.mark.thorough
@pytest.mark.parametrize("key", [None, CABAL_KEY], ids=["plain", "encrypted"])
def test_stores_converge_over_a_link_that_breaks_repeatedly(
    halves: tuple[CableStore, CableStore], key: bytes | None
) -> None:
    """The whole comparison needs several times as many bytes."""

    async def scenario() -> None:
        settings = replace(ONLY, channels=None)
        async with two_nodes(*halves, key=key, settings=settings) as (one, other, address):
            audit = await once(other, address, is_audit=True)
            assert audit.received_comparing_size_bytes > 3 * CUT_SIZE_BYTES
            cutter = Cutter(address)
            async with cutter as through:
                for _ in range(LINKS):
                    cutter.left = CUT_SIZE_BYTES
                    if await is_complete(other, through, over_cable=False):
                        break
                    await until(lambda: not len(one.parts.reconciler))
                else:
                    pytest.fail(
                        f"after {LINKS} links {len(set(other.store.dump()) - set(one.store.dump()))} rows differ"
                    )
            await until(lambda: are_alike(one, other))

    run(scenario())


@pytest.mark.thorough
@on_loop
async def test_a_process_continues_where_another_one_was_cut_off(halves: tuple[CableStore, CableStore]) -> None:
    """The test runs `cablestore reconcile` repeatedly: each run is a separate node over the same folder."""
    settings = replace(ONLY, channels=None)
    async with Node(halves[0], settings) as one:
        address = await one.reconcile_port.listen(Address("127.0.0.1", 0))
        cutter = Cutter(address)
        async with cutter as through:
            is_done = False
            for _ in range(LINKS):
                cutter.left = CUT_SIZE_BYTES
                async with Node(halves[1], settings) as other:
                    is_done = await is_complete(other, through, over_cable=False)
                await until(lambda: not len(one.parts.reconciler))
                if is_done:
                    break
            assert is_done
    assert halves[0].dump_digest() == halves[1].dump_digest()
    for store in halves:
        assert store.check().is_clean
        store.close()


@on_loop
async def test_a_later_beginning_than_an_unfinished_one_reached_is_reconciled(tmp_path: Path) -> None:
    """`cablestore reconcile HOST` breaks off, and `cablestore reconcile HOST --after 1h` follows."""
    now_ms = system_clock_ms()
    stores = CableStore.open(tmp_path / "one"), CableStore.open(tmp_path / "other")
    recent, old = (ANN.text("default", text, at=now_ms - ago) for text, ago in (("recent", 1), ("old", 20 * DAY_MS)))
    stores[0].ingest(raws(recent, old))
    async with two_nodes(*stores) as (_, other, address):
        left = TimeRanges(other.parts.context.marks, str(address), ALL, now_ms=now_ms, keep_ms=DAY_MS)
        for _ in range(8):
            left.broke(has_moved=False)
        left.done()
        left.broke(has_moved=False)
        report = await once(other, address, after_ms=now_ms - DAY_MS // 24)
        assert report.posts_received == 1
        assert other.store.get(recent.hash)
        assert not other.store.get(old.hash)
        assert (await once(other, address)).posts_received == 1
