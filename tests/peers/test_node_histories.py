"""Channel histories of peers that do not reconcile: repeated listings, and posts that are found later."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peering import UNHURRIED, memory, paired, run, spread, sync_of, until, visit
from people import ANN, BOB, START_MS, raws
from stores import scratch_folder

from cablestore import limits
from cablestore.peers import Address, Node
from cablestore.peers.history import safe_point_ms
from cablestore.peers.settings import SYNC_OVERLAP_MS
from cablestore.store.options import system_clock_ms


def test_a_second_connection_receives_few_bytes() -> None:
    with scratch_folder() as folder:
        source = memory("a", clock=system_clock_ms, posts=spread(3000))
        first = run(paired(folder, source, visit))
        second = run(paired(folder, source, visit))
        assert (first.posts, second.posts) == (3000, 0)
        assert second.received_size_bytes < first.received_size_bytes / 100
        source.ingest(raws(ANN.text("default", "new", at=system_clock_ms())))
        assert run(paired(folder, source, visit)).posts == 1
        source.close()


def test_older_posts_are_found_by_the_next_sync() -> None:
    """The peer got posts from others since then, dated long before the mark."""
    with scratch_folder() as folder:
        source = memory("a", clock=system_clock_ms, posts=spread(300))
        run(paired(folder, source, visit))
        for number in range(3):
            source.ingest(raws(BOB.text("default", "old", at=START_MS - 1 - number)))
            assert run(paired(folder, source, visit)).posts == 0
            assert run(paired(folder, source, sync_of)).posts == 1
        source.close()


def test_older_posts_are_found_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """BACKGROUND_PAGE_HASHES, BACKGROUND_HASHES_PER_S: each connection continues the pass of the last one."""
    monkeypatch.setattr(limits, "BACKGROUND_PAGE_HASHES", 20)
    monkeypatch.setattr(limits, "BACKGROUND_HASHES_PER_S", 2_000)
    late = BOB.text("default", "late", at=START_MS - 1)

    async def until_it_came_further(node: Node, address: Address) -> bool:
        """Connect until the pass has advanced by a page. Return True if the late post is stored."""

        def reached() -> tuple[int, int]:
            [mark] = [mark for marks in node.parts.context.marks._peers.values() for mark in marks.values()]
            return mark.back_ms, mark.full_at_ms

        before = reached()
        connection = await node.connect(address)
        await until(lambda: reached() != before)
        connection.close("early")
        await connection.closed
        return node.store.get(late.hash) is not None

    with scratch_folder() as folder:
        source = memory("a", clock=system_clock_ms, posts=spread(300))
        run(paired(folder, source, visit))
        source.ingest(raws(late))
        settings = replace(UNHURRIED, list_every_s=0.01)
        turns = 1
        while not run(paired(folder, source, until_it_came_further, settings)):
            turns += 1
        assert 1 < turns <= 300 // 19 + 2
        source.close()


@given(st.lists(st.integers(0, 10 * SYNC_OVERLAP_MS), max_size=600), st.integers(0, 11 * SYNC_OVERLAP_MS))
def test_the_safe_point_covers_an_hour_and_16_posts(times_ms: list[int], known_ms: int) -> None:
    """MAX_OVERLAP_POSTS: an hour and 16 posts are listed again, unless an hour has more posts than the limit."""
    posts = [ANN.text("default", f"{n}", at=START_MS + time) for n, time in enumerate(times_ms)]
    with memory("a", posts=posts) as store, store.snapshot() as state:
        safe_ms = safe_point_ms(state.reader, "default", START_MS + known_ms) - START_MS
    known = sorted(time for time in times_ms if time < known_ms)
    again = [time for time in known if time >= safe_ms]
    together = len([time for time in known if time == safe_ms])
    assert len(again) >= min(len(known), 16)
    assert len(again) < limits.MAX_OVERLAP_POSTS + together
    if len(again) < limits.MAX_OVERLAP_POSTS:
        assert safe_ms <= known_ms - SYNC_OVERLAP_MS
