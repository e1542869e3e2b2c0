"""Nodes that reconcile over real sockets: at the separate port and beside Cable, plain and encrypted, in both dialects."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from dataclasses import replace

import pytest
from by_hand import CABAL_KEY, on_loop
from clock import StandingLoop
from peering import HOST, memory, network, run, soon, until
from people import ANN, BOB, START_MS, Person, raws
from reconciling_nodes import ONLY, Cutter, are_alike, is_complete, once, two_nodes
from talking import conversation, hello, two_halves, with_stores

from cablestore import DRAFT8, LEGACY, CableStore, Dialect, Post, StoreOptions, limits
from cablestore.errors import NodeError
from cablestore.peers import Address, Node, NodeSettings
from cablestore.peers.metrics import OUTCOMES
from cablestore.peers.reconciler import jittered
from cablestore.protocol.exchange import Concluded, ResponseEvent
from cablestore.protocol.message import TimeRangeRequest
from cablestore.reconcile.errors import PeerRefusedError
from cablestore.store.options import system_clock_ms

WAYS = pytest.mark.parametrize("over_cable", [False, True], ids=["own port", "beside Cable"])


def counted(node: Node, name: str, **labels: str) -> float:
    found = node.parts.context.metrics.registry.get_sample_value(f"cablestore_reconcile_{name}", labels)
    return found or 0.0


def have_the_same(*nodes: Node) -> bool:
    """Return True if nodes have the same posts and deletions.

    Beside Cable a deletion may arrive before its post is sent.
    """
    prefixes = (b"!data!", b"!chat!deleted!")
    return len({frozenset(row[0] for row in node.store.dump() if row[0].startswith(prefixes)) for node in nodes}) == 1


# --- success ----------------------------------------------------------------------------------------


@pytest.mark.thorough("plain-own port", "plain-beside Cable")
@pytest.mark.parametrize(
    ("over_cable", "key", "dialect"),
    [
        (False, CABAL_KEY, LEGACY),
        (True, CABAL_KEY, DRAFT8),
        (False, None, DRAFT8),
        (True, None, LEGACY),
    ],
    ids=["encrypted-own port", "encrypted-beside Cable", "plain-own port", "plain-beside Cable"],
)
@on_loop
async def test_two_nodes_become_equal(over_cable: bool, key: bytes | None, dialect: Dialect) -> None:
    people = [Person(name, dialect) for name in ("ann", "bob")]
    both = [who.text("default", f"both {i}") for i in range(300) for who in people]
    here, there = ([who.text("default", f"{i}") for i in range(700)] + [who.named("x")] for who in people)
    stores = [memory(n, dialect, [*both, *own]) for n, own in enumerate((here, there))]
    stores[1].ingest(raws(people[0].delete(*here[:20])))
    async with two_nodes(*stores, key=key, over_cable=over_cable) as (one, other, address):
        report = await once(other, address, over_cable=over_cable)
        await until(lambda: have_the_same(one, other) if over_cable else are_alike(one, other))
        assert report.posts_received == 681
        registry = one.parts.context.metrics.registry
        assert registry.get_sample_value("cablestore_posts_in_total", {"verdict": "accepted"}) == 702
        # Beside Cable, the peer requests the state of channels immediately, and may have some of it before.
        assert report.posts_sent == 702 or (over_cable and report.posts_sent > 690)
        assert (report.talks, report.refused, report.missing, report.unasked, report.unstored) == (1, 0, 0, 0, 0)
        again = await once(other, address, over_cable=over_cable)
        assert (again.posts_received, again.posts_sent, again.rounds) == (0, 0, 1)
        assert again.received_comparing_size_bytes < 200


@on_loop
async def test_reconciliations_are_counted_in_metrics() -> None:
    stores = with_stores(*two_halves(conversation(200)))
    async with two_nodes(*stores) as (one, other, address):
        report = await once(other, address)
        await until(lambda: counted(one, "sessions_total", side="them", outcome="done"))
        await once(other, address, is_audit=True)
        await until(lambda: counted(one, "sessions_total", side="them", outcome="done") == 2)
        assert counted(other, "sessions_total", side="us", outcome="done") == 2
        assert counted(other, "posts_total", direction="sent") == report.posts_sent
        assert 0 < counted(one, "posts_total", direction="received") < report.posts_sent  # some were deleted there
        assert counted(other, "posts_total", direction="received") == report.posts_received > 0
        for kind in ("comparing", "posts"):
            sent = counted(one, "bytes_total", direction="sent", kind=kind)
            assert sent == counted(other, "bytes_total", direction="received", kind=kind) > 0
        assert counted(other, "audits_total") == 1
        assert counted(one, "audits_total") == 0
        assert counted(other, "rounds_count") == counted(other, "seconds_count") == 2
        assert counted(other, "differences_sum") == report.here_only + report.there_only > 0
    assert len(set(OUTCOMES)) == 8


@on_loop
async def test_after_window_and_channels_limit_the_exchanged_posts() -> None:
    """Only posts that both sides want are moved. Posts before --after or the window, or in other channels, are not."""
    now_ms = system_clock_ms()
    texts = [ANN.text(name, f"{name} {h}", at=now_ms - 3_600_000 * h) for name in ("a", "b") for h in (1, 5, 50)]
    store = CableStore.in_memory(options=StoreOptions(verify_threads=1))
    store.ingest(raws(*texts, ANN.named("Ann", at=now_ms - 1_000)))
    follows = NodeSettings(channels=frozenset({"a"}), window_ms=10 * 3_600_000)
    with store, CableStore.in_memory(options=StoreOptions(verify_threads=1)) as empty:
        async with Node(store) as one, Node(empty, follows) as other:
            address = await one.reconcile_port.listen(Address(HOST, 0))
            await once(other, address, after_ms=now_ms - 2 * 3_600_000)
            assert {message.text for message in empty.messages("a").messages} == {"a 1"}
            await once(other, address)
            assert {message.text for message in empty.messages("a").messages} == {"a 1", "a 5"}
            assert empty.messages("b").messages == []
            assert empty.user(ANN.key).name == "Ann"


@on_loop
async def test_a_node_without_followed_channels_sends_posts_and_receives_none() -> None:
    stores = with_stores([ANN.text("default", "a")], [BOB.text("default", "b")])
    async with Node(stores[0], NodeSettings(channels=frozenset())) as one, Node(stores[1]) as other:
        report = await once(other, await one.reconcile_port.listen(Address(HOST, 0)))
        assert (report.posts_sent, report.posts_received) == (0, 1)


@pytest.mark.thorough
@WAYS
@on_loop
async def test_posts_that_arrive_meanwhile_are_exchanged_the_next_time(over_cable: bool) -> None:
    stores = with_stores(*two_halves(conversation(1_500)))
    late = [ANN.text("default", f"late {i}") for i in range(200)]
    async with two_nodes(*stores, over_cable=over_cable, settings=replace(ONLY, channels=None)) as (
        one,
        other,
        address,
    ):
        task = asyncio.ensure_future(once(other, address, over_cable=over_cable))
        for post in late:
            await asyncio.to_thread(stores[len(post.raw) % 2].ingest, [post.raw])
            await asyncio.sleep(0.002)
        await task
        await once(other, address, over_cable=over_cable)
        await until(lambda: are_alike(one, other))


# --- by schedule -------------------------------------------------------------------------------------


def recent(who: Person, number: int, *, age_ms: int = 0) -> list[Post]:
    return [who.text("default", f"{i}", at=system_clock_ms() - age_ms - i) for i in range(number)]


@pytest.mark.thorough("encrypted-own port")
@pytest.mark.parametrize(
    ("over_cable", "key"), [(True, None), (False, CABAL_KEY)], ids=["plain-beside Cable", "encrypted-own port"]
)
@on_loop
async def test_connected_nodes_stay_in_step(over_cable: bool, key: bytes | None) -> None:
    """All posts are compared at the beginning, then repeatedly the recent ones. The others wait for the next day."""
    settings = NodeSettings(
        cabal_key=key, reconcile_every_s=0.2, reconcile_delay_ms=300, reconcile_window_ms=60_000, list_every_s=600
    )
    one_store, other_store = (CableStore.in_memory(options=StoreOptions(verify_threads=1)) for _ in range(2))
    one_store.ingest(raws(*recent(ANN, 500, age_ms=10**9)))
    other_store.ingest(raws(*recent(BOB, 500, age_ms=10**10)))
    async with two_nodes(one_store, other_store, over_cable=over_cable, key=key, settings=settings) as (
        one,
        other,
        address,
    ):
        (other if over_cable else other.reconcile_port).keep_connected(address)
        await until(lambda: are_alike(one, other))
        one_store.ingest(raws(*recent(ANN, 20)))
        other_store.ingest(raws(*recent(BOB, 20)))
        await until(lambda: are_alike(one, other))
        await until(lambda: counted(other, "sessions_total", side="us", outcome="done") >= 2)
        one_store.ingest(raws(*recent(ANN, 5, age_ms=3_600_000)))  # as an import does
        await until(lambda: are_alike(one, other))


@on_loop
async def test_each_new_connection_compares_everything() -> None:
    """Everything is compared again, because the peer may have imported old logs meanwhile."""
    store, empty = (
        CableStore.in_memory(options=StoreOptions(verify_threads=1)),
        CableStore.in_memory(options=StoreOptions(verify_threads=1)),
    )
    async with two_nodes(store, empty, settings=NodeSettings(reconcile_every_s=600)) as (one, other, address):
        for number in range(3):
            store.ingest(raws(*recent(ANN, 5, age_ms=10**9 + 1_000 * number)))
            link = await other.reconcile_port.connect(address)
            task = other.parts.context.life.run(other.parts.reconciler.keep_in_step(link))
            await until(lambda: are_alike(one, other))
            link.end("by the test")
            await soon(task)


def test_the_length_of_a_pause_varies_by_at_most_a_tenth() -> None:
    assert jittered(300.0, min) == pytest.approx(270.0)
    assert jittered(300.0, max) == pytest.approx(330.0)


@on_loop
async def test_a_connection_on_which_a_reconciliation_failed_is_reconciled_again() -> None:
    """The peer was busy once. The connection is kept, and the next reconciliation finds the missing posts."""
    stores = memory("a", posts=recent(ANN, 10), clock=system_clock_ms), memory("b", clock=system_clock_ms)
    settings = NodeSettings(max_talks=1, reconcile_every_s=0.05)
    async with two_nodes(*stores, settings=settings) as (one, other, address):
        _, writer = await asyncio.open_connection(*address)
        writer.write(bytes((len(hello()),)) + hello())
        await until(lambda: len(one.reconcile_port.reconciler) == 1)
        other.reconcile_port.keep_connected(address)
        await until(lambda: counted(other, "sessions_total", side="us", outcome="refused"))
        links = list(other.reconcile_port.links)
        assert not are_alike(one, other)
        writer.close()
        await until(lambda: are_alike(one, other))
        assert list(other.reconcile_port.links) == links


@on_loop
async def test_the_compared_ranges_are_logged() -> None:
    """Everything is compared at first and after a change, then the recent posts.

    With a shorter day everything is compared again.
    """
    quick = NodeSettings(reconcile_every_s=0.05, reconcile_delay_ms=10)
    async with network(memory("a", posts=recent(ANN, 10)), memory("b"), settings=quick) as net:

        def compared() -> list[str]:
            return [vars(record)["compared"] for record in net.log.records if record.getMessage() == "reconciled"]

        one, other = net.nodes
        other.reconcile_port.keep_connected(await one.reconcile_port.listen(Address(HOST, 0)))
        await until(lambda: re.search("from .* until ", " ".join(compared())))
        assert compared()[0] == "all"
        before = len(compared())
        one.store.ingest(raws(ANN.text("default", "old", at=1)))
        await until(lambda: "all" in compared()[before:])
        await until(lambda: len({node.store.dump_digest() for node in net.nodes}) == 1)
        object.__setattr__(other.settings, "reconcile_all_every_s", 0.0)
        await until(lambda: compared()[-6:] == ["all"] * 6)


# --- cut connections ---------------------------------------------------------------------------------


@pytest.mark.thorough("encrypted-beside Cable")
@pytest.mark.parametrize(
    ("over_cable", "key"), [(False, None), (True, CABAL_KEY)], ids=["plain-own port", "encrypted-beside Cable"]
)
def test_connections_that_break_lose_nothing(over_cable: bool, key: bytes | None) -> None:
    """Connections break repeatedly at any byte; the last one does not break.

    The clock stands, so that no timeout ends what a broken connection has left.
    """

    async def scenario() -> None:
        rng = random.Random(2)
        stores = with_stores(*two_halves(conversation(1_500)))
        settings = replace(ONLY, channels=None)
        async with two_nodes(*stores, key=key, over_cable=over_cable, settings=settings) as (one, other, address):
            cutter = Cutter(address)
            async with cutter as through:
                for _ in range(8):
                    cutter.left = rng.randrange(120_000)
                    while await is_complete(other, through, over_cable):
                        pass
                    await until(lambda: not len(one.parts.reconciler))
                cutter.left = 2**60
                await once(other, through, over_cable=over_cable)
                again = await once(other, through, over_cable=over_cable)
            # Rows may differ: a text whose deletion arrives first, because a connection broke between them, is not
            # sent.
            assert (again.here_only, again.there_only, again.missing) == (0, 0, 0)

    run(scenario(), StandingLoop)


# --- rejections --------------------------------------------------------------------------------------


@WAYS
@on_loop
async def test_stores_of_the_other_dialect_are_rejected(over_cable: bool) -> None:
    """The posts of the two dialects differ, although on Cable both stores may use one dialect."""
    with memory("a") as store, memory("b", DRAFT8) as foreign:
        async with Node(store, ONLY) as one, Node(foreign, ONLY) as other:
            address = await (one.listen if over_cable else one.reconcile_port.listen)(Address(HOST, 0))
            with pytest.raises(NodeError, match="the dialects differ: draft8 was requested, this store has legacy"):
                await once(other, address, over_cable=over_cable)


@on_loop
async def test_another_cabal_key_and_wrong_ports_are_reported() -> None:
    with memory("a") as store, memory("b") as other_store:
        quick = replace(ONLY, talk_silence_s=0.5)
        async with Node(store, replace(quick, cabal_key=CABAL_KEY)) as one, Node(other_store, quick) as plain:
            address = await one.reconcile_port.listen(Address(HOST, 0))
            cable = await one.listen(Address(HOST, 0))
            async with Node(other_store, replace(quick, cabal_key=bytes(32))) as stranger:
                with pytest.raises(NodeError, match="cannot connect to"):
                    await once(stranger, address)
                with pytest.raises(NodeError, match="cannot connect to"):
                    await once(stranger, cable, over_cable=True)
            async with Node(other_store, replace(quick, cabal_key=CABAL_KEY)) as member:
                with pytest.raises(NodeError, match="cannot connect to"):
                    await once(member, cable)  # Cable's port: another prologue
                report = await once(member, address)
                assert report.talks == 1
            with pytest.raises(NodeError):
                await once(plain, address)
            with pytest.raises(NodeError, match="cannot connect"):
                await once(plain, Address(HOST, 1))


def test_a_peer_that_is_not_a_cablestore_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """GREETING_TIMEOUT_S: a peer that answers everything without a greeting is like a node with --no-reconcile."""
    monkeypatch.setattr(limits, "GREETING_TIMEOUT_S", 0.5)

    async def scenario() -> None:
        with memory("a") as store, memory("b") as other_store:
            async with Node(store, replace(ONLY, reconciles=False)) as one, Node(other_store, ONLY) as other:
                address = await one.listen(Address(HOST, 0))
                with pytest.raises(
                    NodeError,
                    match=r"not recognized as a cablestore within 0\.5 s: it is not a cablestore, or does not",
                ):
                    await once(other, address, over_cable=True)

    run(scenario())


@on_loop
async def test_the_number_of_concurrent_conversations_is_limited() -> None:
    """MAX_TALKS of one node. Another peer must retry later."""
    stores = [memory(str(i), posts=conversation(10)) for i in range(3)]
    async with Node(stores[0], NodeSettings(max_talks=1)) as one, Node(stores[1]) as other, Node(stores[2]) as third:
        address = await one.reconcile_port.listen(Address(HOST, 0))
        reader, writer = await asyncio.open_connection(*address)
        writer.write(bytes((len(hello()),)) + hello())
        await until(lambda: len(one.parts.reconciler) == 1)
        with pytest.raises(
            PeerRefusedError, match="the limit of 1 for simultaneous reconciliations is reached"
        ) as error:
            await once(other, address)
        assert error.value.reason == "busy"
        assert await reader.read(5)
        writer.close()
        await until(lambda: not len(one.parts.reconciler))
        assert (await once(third, address)).talks == 1


class Asking:
    """Requests on a connection, one after the other, and the number of posts that were stored while each waited."""

    def __init__(self, node: Node) -> None:
        self.moved: list[int] = []
        self._node = node
        [self._connection] = node.connections
        self._send()

    def _send(self) -> None:
        self._before = self._node.store.last_sequence
        self._connection.send_request(TimeRangeRequest(b"", "default", 0, 2**50, 10), self)

    def handle(self, event: ResponseEvent) -> None:
        if isinstance(event, Concluded) and not self._connection.closed.done():
            self.moved.append(self._node.store.last_sequence - self._before)
            self._send()


@pytest.mark.thorough
@on_loop
async def test_reconciling_does_not_delay_cable() -> None:
    """While thousands of posts move on a connection, few of them precede the answer to each request."""
    texts = [ANN.text("default", f"{i}" + "x" * 200, at=START_MS + i) for i in range(8_000)]
    stores = with_stores(texts, [])
    async with two_nodes(*stores, over_cable=True, settings=replace(ONLY, channels=None)) as (_, other, address):
        task = asyncio.ensure_future(other.reconcile_once(address, over_cable=True))
        await until(lambda: other.parts.context.writes.queued_size_bytes or task.done())
        asking = Asking(other)
        await task
        assert len(asking.moved) > 5
        assert max(asking.moved) < len(texts) / 8, "posts that are stored while a request waits"


@on_loop
async def test_a_finished_reconciliation_is_logged() -> None:
    async with network(
        memory("a", posts=conversation(10)), memory("b"), settings=NodeSettings(list_every_s=0.2)
    ) as net:
        await net.link(net.nodes[1], net.nodes[0])
        await until(lambda: any(record.getMessage() == "reconciled" for record in net.log.records))
        [entry, *_] = [vars(record) for record in net.log.records if record.getMessage() == "reconciled"]
        assert entry["outcome"] == "done"
        assert entry["levelno"] == logging.INFO
