"""Fetching of a node: page by page, from peers of any kind, and with marks that shorten the next sync.

Hashes of a lost peer are requested from others, and stopped peers and nodes leave nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from by_hand import CABAL_KEY, on_loop
from hypothesis import given
from hypothesis import strategies as st
from peering import (
    HOST,
    QUICK,
    Keeper,
    Raw,
    cut_and_mend,
    every,
    foreign,
    memory,
    network,
    paired,
    raw_listener,
    raw_peer,
    run,
    soon,
    spread,
    sync_of,
    until,
    visit,
    with_key,
)
from people import ANN, BOB, START_MS, Person, raws
from slow_line import slow_line
from stores import scratch_folder

from cablestore import DRAFT8, LEGACY, CableStore, Dialect, Post
from cablestore.errors import NodeError
from cablestore.index.log_position import LogPosition
from cablestore.peers import Address, Node, NodeSettings
from cablestore.peers.connection import Connection
from cablestore.peers.paging import SURELY_WHOLE, Paging
from cablestore.peers.sync_once import SingleSync
from cablestore.peers.sync_state import SyncMark, SyncState
from cablestore.protocol.body import INFO, TOPIC
from cablestore.protocol.message import PostRequest, PostResponse, TimeRangeRequest
from cablestore.store.options import system_clock_ms

# --- paging ------------------------------------------------------------------------------------

pytestmark = pytest.mark.usefixtures("quick_clock")

PAGED = replace(QUICK, page_hashes=10)
IMPATIENT = replace(QUICK, page_hashes=20, answer_timeout_s=1.0)
"""Settings for a peer that does not conclude requests: each page takes this time."""


@pytest.mark.thorough("3000")
@pytest.mark.parametrize("together", [1, 3, 40, 3000])
@on_loop
async def test_pages_cover_all_hashes(together: int) -> None:
    posts = spread(max(120, together), together)
    async with network(memory("a", posts=posts), memory("b"), settings=PAGED) as net:
        report = await sync_of(net.nodes[1], net.addresses[net.nodes[0]])
        assert (report.posts, report.missing) == (len(posts), 0)


@pytest.mark.thorough("False-False-12", "True-False-1")
@pytest.mark.parametrize(
    ("oldest_first", "concludes", "together"),
    [(True, False, 1), (True, False, 40), (True, True, 12), (False, True, 40), (False, False, 12)],
)
def test_pages_of_old_clients_cover_all_hashes(oldest_first: bool, concludes: bool, together: int) -> None:
    """cable.rs begins with the oldest and does not conclude requests."""
    how = PAGED if concludes else IMPATIENT
    fetches_all(spread(120, together), how, oldest_first=oldest_first, concludes=concludes)


@pytest.mark.parametrize("together", [1, 50])
@pytest.mark.parametrize("oldest_first", [True, False])
def test_truncated_pages_cover_all_hashes(oldest_first: bool, together: int) -> None:
    """A peer may return fewer hashes than it has and than were requested."""
    fetches_all(spread(400, together), replace(PAGED, page_hashes=100), oldest_first=oldest_first, cap=70)


@pytest.mark.thorough
@on_loop
async def test_a_sync_with_a_peer_that_answers_nothing_raises_an_error() -> None:
    """The peer may have posts, so the result must not be "none"."""
    async with network(memory("b"), settings=IMPATIENT) as net, raw_listener(Raw, dialect=LEGACY) as (address, _):
        with pytest.raises(NodeError, match="did not answer within 1 s"):
            await sync_of(net.nodes[0], address)


@given(
    st.lists(st.integers(0, 30), max_size=600),
    st.integers(1, 80),
    st.integers(SURELY_WHOLE, 100) | st.just(10_000),
    st.booleans(),
)
def test_paging_finds_all_hashes(times_ms: list[int], page_hashes: int, cap: int, newest_first: bool) -> None:
    """The result is independent of the order of the answers, if no timestamp has more posts than the limit of the peer."""
    posts = {bytes([n // 256, n % 256]): time for n, time in enumerate(times_ms) if times_ms[:n].count(time) < cap}
    page = Paging(0, 2**50, page_hashes)
    found: set[bytes] = set()
    for _ in range(200):
        here = sorted((t, h) for h, t in posts.items() if page.start_ms <= t < page.end_ms)
        here = (here[::-1] if newest_first else here)[: min(page.limit or cap, cap)]
        found.update(digest for _, digest in here)
        if page.is_last(len(here)):
            break
        page.turn([digest for _, digest in here], here[0][0], here[-1][0])
    else:
        raise AssertionError("it does not end")
    assert found == set(posts)


def fetches_all(posts: list[Post], how: NodeSettings, **shape: Any) -> None:
    async def main() -> None:
        async with (
            network(memory("b"), settings=how) as net,
            raw_listener(Keeper, posts=posts, **shape) as (address, _),
        ):
            report = await sync_of(net.nodes[0], address)
            assert (report.posts, report.missing) == (len(posts), 0)
            assert not net.log.faults()

    run(main())


@pytest.mark.thorough("draft8")
@pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=lambda d: d.name)
@on_loop
async def test_posts_are_exchanged_with_a_peer_of_the_other_dialect(dialect: Dialect) -> None:
    """All posts except post/info are exchanged, including those of others, and the connection stays open."""
    ours, theirs = Person("ours", dialect), Person("theirs", foreign(dialect))

    def said_by(who: Person) -> list[Post]:
        texts = [who.text("default", f"{n}") for n in range(12)]
        return [*texts, who.join("default"), who.topic("default", "t"), who.named("n"), who.delete(texts[0])]

    mine, other = said_by(ours), said_by(theirs)
    async with network(memory("a", dialect, mine), memory("b", foreign(dialect), other)) as net:
        await net.link(*net.nodes)
        wanted = {p.hash for p in (*mine, *other) if p.type not in (INFO, TOPIC)} - {mine[0].hash, other[0].hash}
        await every(net.nodes, lambda node: all(node.store.get(digest) is not None for digest in wanted))
        await asyncio.sleep(3 * QUICK.list_every_s)
        assert not net.log.reasons()
        assert not net.log.faults()
        one, two = (node.store for node in net.nodes)
        assert one.topic("default") == two.topic("default") == "t"


# --- marks -------------------------------------------------------------------------------------


def change_marks(folder: Path, **fields: object) -> None:
    path = folder / "peers.json"
    found = json.loads(path.read_text())
    for channels in found["peers"].values():
        for mark in channels.values():
            mark.update(fields)
    path.write_text(json.dumps(found))


PLACE = LogPosition("generation-000001-", 7, b"\x01" + bytes(32))


def marks_of(**mark: object) -> str:
    """Return the encoded marks of one channel of one peer."""
    return json.dumps({"format": 2, "place": PLACE.fields(), "peers": {"peer": {"default": mark}}})


DAMAGED_MARKS = [
    marks_of(from_ms="0", until_ms=1, full_at_ms=1),
    marks_of(from_ms=0, until_ms=1, full_at_ms=True),
    marks_of(from_ms=0, until_ms=1, full_at_ms=1, of_a_later_version=1),
    marks_of(from_ms=0, until_ms=1),
    '{"format": 2, "place": null, "peers": ' + '{"a": ' * 100_000,
    "[" * 100_000,
    '{"format": 2, "place": null, "peers": {"peer": {"\udcff": {}}}}',
    marks_of(from_ms=0, until_ms=1, full_at_ms=1).replace('"sequence": 7', '"sequence": "7"'),
    marks_of(from_ms=0, until_ms=1, full_at_ms=1).replace('"entry": "01', '"entry": "0x'),
    marks_of(from_ms=0, until_ms=1, full_at_ms=1).replace('"place"', '"placed"'),
    '{"format": 1, "peers": {"peer": {"default": {"from_ms": 0, "until_ms": 2, "full_at_ms": 1}}}}',
]


@pytest.mark.parametrize("damage", DAMAGED_MARKS, ids=range(len(DAMAGED_MARKS)))
def test_a_damaged_file_of_marks_counts_as_missing(tmp_path: Path, damage: str) -> None:
    """The test covers types, missing values, depth, invalid UTF-8, and a file of 0.12.4 without a position."""
    path = tmp_path / "peers.json"
    path.write_text(marks_of(from_ms=0, until_ms=2, full_at_ms=1), encoding="utf-8")
    assert SyncState(tmp_path).get("peer", "default") == SyncMark(0, 2, 1)
    path.write_bytes(damage.encode(errors="surrogateescape"))
    assert SyncState(tmp_path).get("peer", "default") is None


def test_marks_are_read_as_they_were_written_in_any_locale(tmp_path: Path) -> None:
    marks = SyncState(tmp_path)
    marks.put("peer", "café", SyncMark(0, 2, 1))
    marks.save()
    program = (
        "import sys; from pathlib import Path; from cablestore.peers.sync_state import SyncState;"
        "sys.exit(SyncState(Path(sys.argv[1])).get('peer', 'caf' + chr(233)) is None)"
    )
    latin = os.environ | {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    subprocess.run([sys.executable, "-c", program, tmp_path], env=latin, check=True)


@pytest.mark.parametrize("ahead", [["full_at_ms"], ["until_ms", "full_at_ms"], ["until_ms"]], ids="+".join)
def test_a_mark_of_the_future_counts_as_missing(ahead: list[str]) -> None:
    """The clock was wrong when the mark was made. Later passes would not include the posts before it."""
    with scratch_folder() as folder:
        source = memory("a", clock=system_clock_ms, posts=spread(300))
        run(paired(folder, source, visit))
        source.ingest(raws(BOB.text("default", "later", at=START_MS - 1)))
        change_marks(folder, **dict.fromkeys(ahead, system_clock_ms() + 10**10))
        assert run(paired(folder, source, visit)).posts == 1
        source.close()


@pytest.mark.thorough
def test_damaged_marks_cause_a_full_pass() -> None:
    with scratch_folder() as folder, memory("a", clock=system_clock_ms, posts=spread(300)) as source:
        assert run(paired(folder, source, visit)).posts == 300
        path = folder / "peers.json"
        for damage in ("", "{", "[]", '{"format": 2, "place": null, "peers": {"x": {"y": 3}}}', "\x00" * 100, None):
            path.unlink()
            if damage is not None:
                path.write_text(damage)
            again = run(paired(folder, source, visit))
            assert again.posts == 0
            assert again.received_size_bytes > 300 * 32
        assert run(paired(folder, source, visit)).received_size_bytes < 300 * 32


def test_a_mark_that_is_not_a_number_causes_a_full_pass() -> None:
    with scratch_folder() as folder, memory("a", clock=system_clock_ms, posts=spread(300)) as source:
        assert run(paired(folder, source, visit)).posts == 300
        for value in ("1", None, 1.5, [1]):
            change_marks(folder, until_ms=value)
            assert run(paired(folder, source, visit)).received_size_bytes > 300 * 32


class Owing(Keeper):
    """Peer that cuts the connection, or withholds posts, after `after` requests for posts."""

    after = 1
    cuts = True

    def give(self, request_id: bytes, hashes: Iterable[bytes]) -> None:
        if len(self.requests_of(PostRequest)) <= self.after:
            super().give(request_id, hashes)
        elif self.cuts:
            self.cut()
        else:
            self.say(PostResponse(request_id, ()))


@pytest.mark.thorough("True")
@pytest.mark.parametrize("cuts", [True, False])
def test_a_failed_pass_leaves_no_mark(cuts: bool) -> None:
    posts = spread(1500)

    async def main(folder: Path) -> None:
        with CableStore.open(folder) as store:
            async with Node(store, replace(QUICK, page_hashes=400)) as node:
                async with raw_listener(Owing, posts=posts, cuts=cuts) as (address, _):
                    if cuts:
                        with pytest.raises(Exception, match="closed the connection"):
                            await sync_of(node, address)
                    else:
                        assert (await sync_of(node, address)).missing > 0
                    assert node.parts.context.marks.get(str(address), "default") is None
                async with raw_listener(Keeper, posts=posts) as (address, _):
                    report = await sync_of(node, address)
                    assert 0 < report.posts < 1500
                    assert node.parts.context.marks.get(str(address), "default") is not None
            assert store.check().is_clean

    with scratch_folder() as folder:
        run(main(folder))


class Pausing(Keeper):
    """Peer that stops in its first answer to a time range. Afterwards it hangs, or answers as before."""

    part = 100
    hangs = False

    def tell(self, request_id: bytes, hashes: tuple[bytes, ...], *, ends: bool) -> None:
        if len(self.requests_of(TimeRangeRequest)) == 1:
            super().tell(request_id, hashes[: self.part], ends=False)
        elif not self.hangs:
            super().tell(request_id, hashes, ends=ends)


def mark_after_sync(count: int, **shape: Any) -> tuple[int, SyncMark | None]:
    """Sync once with a peer that has N posts. Return how many were received, and the mark of the pass."""

    async def main() -> tuple[int, SyncMark | None]:
        async with (
            network(memory("b"), settings=replace(QUICK, answer_timeout_s=1.0)) as net,
            raw_listener(posts=spread(count), **shape) as (address, _),
        ):
            report = await sync_of(net.nodes[0], address)
            return report.posts, net.nodes[0].parts.context.marks.get(str(address), "default")

    return run(main())


@pytest.mark.thorough
@on_loop
async def test_all_posts_arrive_over_a_slow_line() -> None:
    """A single answer takes longer than the timeout of a request."""
    posts = [ANN.text("default", f"{number}".ljust(2_000, "."), at=START_MS + number) for number in range(40)]
    settings = replace(QUICK, answer_timeout_s=3.0)
    async with network(memory("a", posts=posts), memory("b"), settings=settings) as net:
        here, there = reversed(net.nodes)
        async with slow_line(net.addresses[there], bytes_per_s=16_000) as address:
            report = await sync_of(here, address)
        assert (report.posts, report.missing) == (40, 0)
        await net.are_alike()


@pytest.mark.thorough("False", "True")
@pytest.mark.parametrize("oldest_first", [True, False])
def test_an_interrupted_answer_does_not_count_as_complete(oldest_first: bool) -> None:
    """The rest is requested, and a mark is written only if it was received."""
    assert mark_after_sync(300, kind=Pausing, oldest_first=oldest_first, hangs=True) == (100, None)
    posts, mark = mark_after_sync(300, kind=Pausing, oldest_first=oldest_first)
    assert (posts, mark is None) == (300, False)


@pytest.mark.thorough("1", "300")
@pytest.mark.parametrize("count", [1, 40, 300])
def test_a_pass_leaves_a_mark_even_if_the_peer_concludes_no_requests(count: int) -> None:
    """Like cable.rs, the peer has no more posts if it only repeats the end of the page before."""
    posts, mark = mark_after_sync(count, kind=Keeper, oldest_first=True, concludes=False)
    assert (posts, mark is None) == (count, False)


# --- lost peers --------------------------------------------------------------------------------


@on_loop
async def test_requests_to_a_lost_peer_are_sent_to_others() -> None:
    posts = spread(300)
    async with network(memory("a")) as net:
        node = net.nodes[0]
        owing = await raw_peer(net.addresses[node], Owing, posts=posts, after=0, cuts=False)
        owing.give = lambda *_: None  # does not answer
        await until(lambda: owing.requests_of(PostRequest))
        other = await raw_peer(net.addresses[node], Keeper, posts=posts)
        await until(lambda: other.requests_of(TimeRangeRequest))
        await asyncio.sleep(0.1)
        assert not other.requests_of(PostRequest), "a requested post must not be requested from another peer meanwhile"
        owing.cut()
        await until(lambda: all(node.store.get(post.hash) is not None for post in posts))
        await owing.close()
        await other.close()
        await until(lambda: not len(node.parts.sync.fetches.pending) and not node.parts.sync.fetches.storing)


# --- stopping ----------------------------------------------------------------------------------


@pytest.mark.thorough("encrypted")
@pytest.mark.parametrize("key", [None, CABAL_KEY], ids=["plain", "encrypted"])
@on_loop
async def test_a_stop_during_a_large_sync_stores_received_posts(key: bytes | None) -> None:
    """Received posts are stored.

    An encrypted stream ends with its end message. A plain one does not have one, so TCP may reset it.
    """
    stores = memory("a", posts=spread(2_500)), memory("b")
    async with network(*stores, settings=with_key(QUICK, key)) as net:
        link = await net.link(*reversed(net.nodes))
        await until(lambda: stores[1].last_sequence > 300)
        serving, fetching = net.nodes
        parts = fetching.parts
        await net.stop(fetching)
        await until(lambda: not serving.connections)
        reasons = net.log.reasons()
        assert "this node is stopping" in reasons
        lost = "without an end", "was lost"
        assert key is None or not any(each in reason for reason in reasons for each in lost), reasons
        assert link.closed.done()
        assert not parts.sync.fetches.storing, "a received post was not stored"
        assert not asyncio.all_tasks() - {asyncio.current_task(), *serving.parts.context.life.tasks}


@pytest.mark.thorough
@on_loop
async def test_lost_peers_leave_no_state() -> None:
    """Tasks, hashes and requests of lost peers are removed."""
    async with network(memory("a", posts=spread(2000)), memory("b")) as net:
        choice = Random(1)
        one, other = net.nodes
        await net.link(other, one)
        await cut_and_mend(net, choice, 30)
        await net.are_alike()
        tasks = {node: len(node.parts.context.life.tasks) for node in net.nodes}
        assert max(tasks.values()) < 12, tasks
        for link in net.links:
            link.close("the end")
        await every(net.nodes, lambda node: not node.connections)
        await every(net.nodes, lambda node: len(node.parts.context.life.tasks) == 3)  # two clocks and the feed
        for node in net.nodes:
            assert not len(node.parts.sync.fetches.pending)
            assert not len(node.parts.sync)
            assert not node.parts.serving.live.count


@on_loop
async def test_a_peer_lost_during_a_comparison_raises_an_error_with_the_reason() -> None:
    reconciling = replace(QUICK, reconciles=True)
    async with network() as net:
        one, other = [await net.add(memory(name), reconciling) for name in "ab"]

        async def connect(address: Address) -> Connection:
            connection = await one.connect(address)
            await connection.until_known()
            assert connection.is_met
            asyncio.get_running_loop().call_soon(connection.close, "lost")
            return connection

        single = SingleSync(one.parts.context, one.parts.sync, one.parts.reconciler, net.addresses[other])
        with pytest.raises(NodeError, match="closed the connection: lost"):
            await single.run(connect, None)
        assert (len(one.parts.sync), len(one.parts.sync.fetches)) == (0, 0)
        for node in (one, other):
            await net.stop(node)
            node.store.close()


@on_loop
async def test_a_peer_lost_before_its_sync_leaves_no_state() -> None:
    async with network(memory("a"), memory("b")) as net:
        one, other = net.nodes

        async def connect(address: Address) -> Connection:
            connection = await one.connect(address)
            connection.close("lost")
            await connection.closed
            return connection

        with pytest.raises(NodeError, match="closed the connection: lost"):
            await SingleSync(one.parts.context, one.parts.sync, one.parts.reconciler, net.addresses[other]).run(
                connect, None
            )
        assert (len(one.parts.sync), len(one.parts.sync.fetches)) == (0, 0)


@on_loop
async def test_equal_stores_report_no_posts_and_no_differences() -> None:
    posts = spread(10)
    with memory("a", posts=posts) as here, memory("b", posts=posts) as there:
        async with Node(there, QUICK) as peer, Node(here, QUICK) as node:
            report = await soon(node.reconcile_once(await peer.reconcile_port.listen(Address(HOST, 0))))
    assert (report.posts_sent, report.posts_received, report.here_only, report.there_only) == (0, 0, 0, 0)
    assert (report.refused, report.missing, report.unasked, report.unstored) == (0, 0, 0, 0)
