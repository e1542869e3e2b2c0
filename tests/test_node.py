"""Nodes over real sockets come to hold the same, whatever happens on the way."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from history import Model, histories
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.public import PrivateKey
from peering import (
    ANSWERS_ONLY,
    HOST,
    QUICK,
    Keeper,
    Network,
    Raw,
    cut_and_mend,
    every,
    foreign,
    is_refused,
    memory,
    network,
    randoms,
    raw_listener,
    raw_peer,
    run,
    soon,
    sync_of,
    until,
    with_key,
)
from people import ANN, BOB, START_MS, Person, raws
from stores import public, scratch_folder

from cablestore import DRAFT8, LEGACY, CableStore, Dialect, Identity, NodeError, Post, limits
from cablestore.body import DELETE, INFO, JOIN, LEAVE, ROLE, TEXT, TOPIC, Delete
from cablestore.crypto import exchange_public_key, post_hash
from cablestore.message import (
    HashResponse,
    ListRequest,
    ListResponse,
    Message,
    PostRequest,
    PostResponse,
    StateRequest,
    TimeRangeRequest,
    encode_message,
)
from cablestore.node import Address, Node, NodeSettings
from cablestore.node.paging import SURELY_WHOLE, Paging
from cablestore.noise import SecureChannel
from cablestore.session import Fault
from cablestore.store import system_clock_ms

KEY = bytes(range(32))
BOTH = pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=lambda d: d.name)
Layout = Callable[[Network], Awaitable[None]]
LAYOUTS: dict[str, tuple[int, Layout]] = {
    "two": (2, Network.line),
    "ring": (5, Network.ring),
    "star": (5, Network.star),
    "line": (4, Network.line),
}


# --- histories and what nodes tell each other of them ------------------------------------------


def told(posts: Iterable[Post]) -> list[Post]:
    """Leave out what the protocol has no word for.

    Deletions of posts that are in no channel, and topics before the last: those who wrote them are members for all that
    know of them, and nobody is told.
    """
    known = {post.hash: post for post in public(posts)}
    last = {post.channel: post for post in sorted(known.values(), key=_moment) if post.type == TOPIC}
    kept = [post for post in known.values() if post.type != TOPIC or last[post.channel] is post]
    deletable = {post.hash for post in kept if post.type in (TEXT, TOPIC, JOIN, LEAVE)}
    return [post for post in kept if post.type != DELETE or _own_targets(post, known) <= deletable]


def lasting(posts: Iterable[Post]) -> list[Post]:
    """Return what all end up with, byte by byte: what is told to somebody who knows nothing.

    And deletions of texts, for nodes that have seen the texts: of several of one text, all are told of the first.
    """
    found = told(posts)
    while True:
        known = {post.hash: post for post in found}
        model = Model(found)
        channels = model.channels()
        keep = {digest for channel in channels for digest in (*model.state(channel), *model.messages(channel))}
        keep |= {digest for channel in (*channels, "") for digest in model.moderation(channel, 0)}
        for post in found:
            targets = _own_targets(post, known) if post.type == DELETE else set()
            is_first = any(post == min(_deletions(digest, known), key=_moment) for digest in targets)
            if is_first and all(known[digest].type == TEXT for digest in targets):
                keep |= {post.hash, *targets}
        left = [post for post in found if post.hash in keep and post.type != ROLE]
        if len(left) == len(found):
            return left
        found = left


def _own_targets(post: Post, known: dict[bytes, Post]) -> set[bytes]:
    assert isinstance(post.body, Delete) or post.type != DELETE
    hashes = post.body.hashes if isinstance(post.body, Delete) else ()
    return {h for h in hashes if h in known and known[h].author == post.author and known[h].type != DELETE}


def _deletions(target: bytes, known: dict[bytes, Post]) -> list[Post]:
    return [post for post in known.values() if post.type == DELETE and target in _own_targets(post, known)]


def _moment(post: Post) -> tuple[int, bytes]:
    return post.timestamp_ms, post.hash


def anchors(posts: Iterable[Post], dialect: Dialect) -> list[Post]:
    """Return a text for each channel, so that it is named to others even when all else in it is deleted."""
    someone = Person("anchor", dialect)
    return [someone.text(channel, "here", at=START_MS) for channel in sorted({p.channel for p in posts if p.channel})]


def dealt(posts: Iterable[Post], hands: int, choice: Random) -> list[list[Post]]:
    """Split posts, a few of them to several; each hand in an order of its own."""
    found: list[list[Post]] = [[] for _ in range(hands)]
    for post in posts:
        for hand in choice.sample(found, choice.choice((1, 1, 1, 2))):
            hand.append(post)
    for hand in found:
        choice.shuffle(hand)
    return found


def assert_says(store: CableStore, model: Model) -> None:
    """What users see is what the model says."""
    assert [channel.name for channel in store.channels()] == model.channels()
    for channel in model.channels():
        said = store.messages(channel, 1000, newest_first=False).messages
        assert [message.hash for message in said] == model.messages(channel)
        assert store.topic_of(channel) == model.topic(channel)
        members = list(store.members(channel))
        assert [user.public_key for user in members] == model.members(channel)
        assert [user.name for user in members] == [model.name(user.public_key) for user in members]
    for channel in (*model.channels(), ""):
        for digest in model.moderation(channel, 0):
            assert model.live[digest].type == ROLE or store.post(digest) is not None


async def agree(net: Network, model: Model) -> None:
    def all_say() -> bool:
        for node in net.nodes:
            assert_says(node.store, model)
        return True

    def try_() -> bool:
        try:
            return all_say()
        except AssertionError:
            return False

    try:
        await until(try_)
    except AssertionError:
        all_say()  # tells what is amiss
        raise


# --- convergence -------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=8)
@given(histories(), randoms, st.booleans())
def test_equal_dumps(layout: str, history: tuple[Dialect, list[Post]], choice: Random, is_encrypted: bool) -> None:
    """Deletions come in any order, before the texts and after; everybody has seen those."""
    dialect, posts = history
    posts = lasting(posts)
    known = {post.hash: post for post in posts}
    doomed = {target for post in posts if post.type == DELETE for target in _own_targets(post, known)}
    count, lay = LAYOUTS[layout]
    hands = dealt([p for p in [*posts, *anchors(posts, dialect)] if p.hash not in doomed], count, choice)
    for hand in hands:
        hand += [known[digest] for digest in doomed]
        choice.shuffle(hand)

    async def main() -> None:
        nodes = [memory(index, dialect, hand) for index, hand in enumerate(hands)]
        async with network(*nodes, settings=with_key(QUICK, KEY if is_encrypted else None)) as net:
            await lay(net)
            await net.are_alike()
            held = {event.hash for event in net.nodes[0].store.subscribe(timeout_s=0) if event.kind.name == "ACCEPTED"}
            assert set(known) - doomed <= held

    run(main())


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=8)
@given(histories(), randoms, st.integers(0, 4))
def test_all_say_the_same(layout: str, history: tuple[Dialect, list[Post]], choice: Random, cuts: int) -> None:
    """Whoever held what, late joiners, links cut at any moment, posts while they sync: all users see what the model says."""
    dialect, posts = history
    posts = told(posts)
    posts += anchors(posts, dialect)
    count, lay = LAYOUTS[layout]
    hands = dealt(posts, 2 * count, choice)

    async def main() -> None:
        nodes = [memory(index, dialect, hand) for index, hand in enumerate(hands[:count])]
        late = memory("late", dialect)
        async with network(*nodes, late, settings=with_key(QUICK, KEY)) as net:
            alone = net.nodes.pop()
            await lay(net)
            mending = asyncio.ensure_future(cut_and_mend(net, choice, cuts))
            for node, hand in zip(net.nodes, hands[count:], strict=True):
                for post in hand:
                    await asyncio.sleep(choice.random() * 0.01)
                    await asyncio.to_thread(node.store.ingest, [post.raw])
            net.nodes.append(alone)
            await net.link(alone, choice.choice(net.nodes[:-1]))
            await soon(mending)
            await agree(net, Model(posts))

    run(main())


# --- liars -------------------------------------------------------------------------------------


class Liar(Keeper):
    """Knows the channels and their posts, and `how` to be of no use."""

    how = ""
    count = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.spoilt = spoilt_posts()
        super().__init__(*arguments, **options)

    def answer(self, message: Message) -> None:
        self.count += 1
        if self.count > 300 or (isinstance(message, ListRequest) and self.how != "wrong type"):
            if isinstance(message, ListRequest):
                super().answer(message)
            return
        if isinstance(message, HashResponse | PostResponse | ListResponse) or self.how == "silent":
            return
        getattr(self, "_" + self.how.replace(" ", "_"))(message)

    def _garbage(self, message: Message) -> None:
        self.write(random.randbytes(200))

    def _foreign_posts(self, message: Message) -> None:
        posts = tuple(Person("liar").text("default", str(i)).raw for i in range(3))
        request_id = message.request_id
        self.say(*itertools.repeat(PostResponse(request_id, posts), 40))
        if isinstance(message, TimeRangeRequest):
            self.say(HashResponse(request_id, tuple(self.posts)), HashResponse(request_id, ()))

    def _wrong_posts(self, message: Message) -> None:
        """Offer posts and deliver others."""
        if isinstance(message, PostRequest):
            other = Person("liar").text("default", "not this").raw
            self.say(*itertools.repeat(PostResponse(message.request_id, (other,)), 110))
        elif isinstance(message, TimeRangeRequest):
            super().answer(message)

    def _bad_signatures(self, message: Message) -> None:
        if isinstance(message, PostRequest):
            self.say(
                PostResponse(message.request_id, tuple(self.spoilt[h] for h in message.hashes if h in self.spoilt))
            )
        elif isinstance(message, TimeRangeRequest):
            self.say(HashResponse(message.request_id, tuple(self.spoilt)), HashResponse(message.request_id, ()))

    def _endless_hashes(self, message: Message) -> None:
        if isinstance(message, StateRequest | TimeRangeRequest) and self.count < 40:
            self.say(HashResponse(message.request_id, tuple(random.randbytes(32) for _ in range(20_000))))

    def _wrong_type(self, message: Message) -> None:
        request_id = message.request_id
        wrong: Message = ListResponse(request_id, ())
        if isinstance(message, PostRequest | ListRequest):
            wrong = HashResponse(request_id, ())
        self.say(*itertools.repeat(wrong, 110))


def spoilt_posts() -> dict[bytes, bytes]:
    """Return posts with one wrong bit in each signature."""
    found = [bytearray(Person("liar").text("default", str(index)).raw) for index in range(30)]
    for raw in found:
        raw[40] ^= 1
    return {post_hash(bytes(raw)): bytes(raw) for raw in found}


LIES: dict[str, str | None] = {
    "garbage": None,
    "foreign posts": Fault.WRONG_TYPE.value,
    "wrong posts": Fault.UNASKED_POSTS.value,
    "bad signatures": "invalid posts",
    "endless hashes": None,
    "wrong type": Fault.WRONG_TYPE.value,
    "silent": None,
}


@pytest.mark.parametrize("how", LIES)
def test_liar(how: str) -> None:
    """Among five honest nodes that get all from each other; it tells each that it has what the others lack."""
    posts = [Person(f"p{n % 5}").text("default", str(n)) for n in range(60)]
    hands = dealt(posts, 5, Random(how))

    async def main() -> None:
        quick = replace(QUICK, answer_timeout_s=1.0)
        async with network(*(memory(n, posts=hand) for n, hand in enumerate(hands)), settings=quick) as net:
            liars = [await raw_peer(net.addresses[node], Liar, how=how, posts=posts) for node in net.nodes]
            await net.ring()
            await net.are_alike()
            assert {post.hash for post in posts} <= {e.hash for e in net.nodes[0].store.subscribe(timeout_s=0)}
            fault = LIES[how]
            if fault:
                await until(lambda: all(liar.is_over for liar in liars), lambda: (net.log.reasons(), net.log.faults()))
                assert sum(fault in reason for reason in net.log.reasons()) == len(liars), net.log.reasons()
            for node in net.nodes:
                assert len(node.sync.wanted) <= limits.MAX_WANTED_PER_PEER * len(node.connections)
            for liar in liars:
                await liar.close()
            await every(net.nodes, lambda node: not len(node.sync.wanted))
            assert all(link in link._node.connections for link in net.links), "an honest link was given up"

    run(main())


# --- encrypted ---------------------------------------------------------------------------------


@pytest.mark.parametrize("separate", [False, True])
def test_encrypted(separate: bool) -> None:
    async def main() -> None:
        stores = [memory("a", posts=[ANN.text("default", "x")]), memory("b")]
        async with network(*stores, settings=with_key(QUICK, KEY, separate=separate)) as net:
            link = await net.link(*net.nodes)
            await net.are_alike()
            identity = stores[1].identity
            assert link.remote_static is not None
            known = exchange_public_key(identity.public_key)
            own = bytes(PrivateKey(identity.separate_exchange_secret).public_key)
            assert link.remote_static == (own if separate else known) != (known if separate else own)

    run(main())


def test_wrong_cabal_key() -> None:
    async def main() -> None:
        stores = [memory("a", posts=[ANN.text("default", "x")]), memory("b"), memory("c")]
        hasty = replace(with_key(QUICK, KEY), handshake_timeout_s=0.5)
        async with network(*stores[:2], settings=hasty) as net:
            stranger = await net.add(stores[2], with_key(QUICK, bytes(32)))
            await is_refused(stranger, net.addresses[net.nodes[0]])
            plain = Node(memory("d"), QUICK)
            async with plain:
                connection = await plain.connect(net.addresses[net.nodes[0]])
                await soon(asyncio.shield(connection.closed))
            plain.store.close()
            assert any("handshake message 1" in reason for reason in net.log.reasons())
            assert any("took too long" in reason for reason in net.log.reasons())
            await net.stop(stranger)
            await net.link(*net.nodes)
            await net.are_alike()
            assert not list(stores[2].channels())
        stores[2].close()

    run(main())


def test_connecting_to_one_who_says_nothing_leaves_nothing() -> None:
    async def main() -> None:
        async with network(memory("a"), settings=with_key(QUICK, KEY)) as net, raw_listener(Raw) as (address, peers):
            with pytest.raises(NodeError, match="does not answer"):
                await net.nodes[0].connect(address, timeout_s=0.2)
            await until(lambda: not net.nodes[0].connections)
            await until(lambda: peers[0].is_over)

    run(main())


def _tampered(kind: str, first: bytes, third: bytes, transport: bytes) -> bytes:
    match kind:
        case "flipped third":
            return third[:50] + bytes((third[50] ^ 1,)) + third[51:]
        case "first again":
            return first + bytes(16)
        case "reordered":
            return transport + third
        case "repeated":
            return third + transport + transport
        case "flipped":
            return third + transport[:5] + bytes((transport[5] ^ 1,)) + transport[6:]
    return third[:40]


@pytest.mark.parametrize("kind", ["flipped third", "first again", "reordered", "repeated", "flipped", "truncated"])
def test_tampered_handshake(kind: str) -> None:
    """The connection ends with a reason, and the node goes on serving others."""

    async def main() -> None:
        stores = [memory("a", posts=[ANN.text("default", "x")]), memory("b")]
        async with network(*stores, settings=with_key(QUICK, KEY)) as net:
            reader, writer = await asyncio.open_connection(*net.addresses[net.nodes[0]])
            channel = SecureChannel(
                cabal_key=KEY,
                static_secret=Identity.derive("raw", "peer").exchange_secret,
                is_initiator=True,
                max_message_size_bytes=1000,
            )
            first = channel.start()
            writer.write(first)
            _, third = channel.receive(await soon(reader.readexactly(96)))
            writer.write(
                _tampered(kind, first, third, channel.send(encode_message(ListRequest(bytes(4), 0, 0), LEGACY)))
            )
            if kind == "truncated":
                writer.write_eof()
            await soon(reader.read())
            writer.close()
            await until(net.log.reasons)
            expected = {
                "truncated": "",
                "flipped third": "message 3",
                "first again": "message 3",
                "reordered": "message 3",
            }
            assert expected.get(kind, "changed, repeated or cut") in net.log.reasons()[0]
            await net.link(*net.nodes)
            await net.are_alike()

    run(main())


# --- paging ------------------------------------------------------------------------------------

PAGED = replace(QUICK, page_hashes=10, answer_timeout_s=0.5)


def spread(count: int, together: int = 1) -> list[Post]:
    """Texts, so many of them at each moment."""
    return [ANN.text("default", str(n), at=START_MS + n // together) for n in range(count)]


@pytest.mark.parametrize("together", [1, 3, 40, 3000])
def test_pages(together: int) -> None:
    posts = spread(max(120, together), together)

    async def main() -> None:
        async with network(memory("a", posts=posts), memory("b"), settings=PAGED) as net:
            report = await sync_of(net.nodes[1], net.addresses[net.nodes[0]])
            assert (report.posts, report.missing) == (len(posts), 0)

    run(main())


@pytest.mark.parametrize("together", [1, 12, 40])
@pytest.mark.parametrize("concludes", [True, False])
@pytest.mark.parametrize("oldest_first", [True, False])
def test_pages_of_old_clients(oldest_first: bool, concludes: bool, together: int) -> None:
    """cable.rs begins with the oldest and concludes nothing."""
    fetches_all(spread(120, together), PAGED, oldest_first=oldest_first, concludes=concludes)


@pytest.mark.parametrize("together", [1, 50])
@pytest.mark.parametrize("oldest_first", [True, False])
def test_pages_that_are_cut(oldest_first: bool, together: int) -> None:
    """A peer may give fewer hashes than it has and was asked for."""
    fetches_all(spread(400, together), replace(PAGED, page_hashes=100), oldest_first=oldest_first, cap=70)


@given(
    st.lists(st.integers(0, 30), max_size=600),
    st.integers(1, 80),
    st.integers(SURELY_WHOLE, 100) | st.just(10_000),
    st.booleans(),
)
def test_paging_finds_all(times_ms: list[int], page_hashes: int, cap: int, newest_first: bool) -> None:
    """Whatever way the answers go, as long as no moment has more posts than a peer gives at once."""
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


@pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=lambda d: d.name)
def test_peer_of_the_other_dialect(dialect: Dialect) -> None:
    """All but post/info is exchanged, also what others wrote, and nobody is disconnected."""
    ours, theirs = Person("ours", dialect), Person("theirs", foreign(dialect))

    def said_by(who: Person) -> list[Post]:
        texts = [who.text("default", f"{n}") for n in range(12)]
        return [*texts, who.join("default"), who.topic("default", "t"), who.named("n"), who.delete(texts[0])]

    mine, other = said_by(ours), said_by(theirs)

    async def main() -> None:
        async with network(memory("a", dialect, mine), memory("b", foreign(dialect), other)) as net:
            await net.link(*net.nodes)
            wanted = {p.hash for p in (*mine, *other) if p.type not in (INFO, TOPIC)} - {mine[0].hash, other[0].hash}
            await every(net.nodes, lambda node: all(node.store.post(digest) is not None for digest in wanted))
            await asyncio.sleep(3 * QUICK.list_every_s)
            assert not net.log.reasons()
            assert not net.log.faults()
            one, two = (node.store for node in net.nodes)
            assert one.topic_of("default") == two.topic_of("default") == "t"

    run(main())


# --- marks -------------------------------------------------------------------------------------


async def paired(folder: Path, source: CableStore, act: Callable[[Node, Address], Awaitable[Any]]) -> Any:
    """Do something with a node on a folder, and the address of one that has `source`."""
    async with Node(source, with_key(ANSWERS_ONLY, KEY)) as serving:
        address = await serving.listen(Address(HOST, 0))
        with CableStore.open(folder) as store:
            async with Node(store, with_key(QUICK, KEY)) as node:
                found = await act(node, address)
            report = store.check()
            assert report.is_clean, report.problems
        return found


def change_marks(folder: Path, **fields: int) -> None:
    path = folder / "peers.json"
    found = json.loads(path.read_text())
    for channels in found["peers"].values():
        for mark in channels.values():
            mark.update(fields)
    path.write_text(json.dumps(found))


def test_second_sync_asks_little() -> None:
    with scratch_folder() as folder:
        source = memory("a", clock=system_clock_ms, posts=spread(6000))
        first = run(paired(folder, source, sync_of))
        second = run(paired(folder, source, sync_of))
        assert (first.posts, second.posts) == (6000, 0)
        size = first.received_size_bytes + first.sent_size_bytes
        assert second.received_size_bytes + second.sent_size_bytes < size / 100
        source.ingest(raws(ANN.text("default", "new", at=system_clock_ms())))
        assert run(paired(folder, source, sync_of)).posts == 1
        source.close()


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"format": 1, "peers": {"x": {"y": 3}}}', "\x00" * 100, "none"])
def test_damaged_marks_cost_a_full_pass(damage: str) -> None:
    with scratch_folder() as folder:
        source = memory("a", clock=system_clock_ms, posts=spread(300))
        assert run(paired(folder, source, sync_of)).posts == 300
        path = folder / "peers.json"
        if damage == "none":
            path.unlink()
        else:
            path.write_text(damage)
        again = run(paired(folder, source, sync_of))
        assert again.posts == 0
        assert again.received_size_bytes > 300 * 32
        assert run(paired(folder, source, sync_of)).received_size_bytes < 300 * 32
        source.close()


def test_older_posts_are_found_by_the_next_full_pass() -> None:
    """What a peer learned behind our back, dated long before the mark."""
    with scratch_folder() as folder:
        source = memory("a", clock=system_clock_ms, posts=spread(300))
        run(paired(folder, source, sync_of))
        source.ingest(raws(BOB.text("default", "old", at=START_MS - 1)))
        assert run(paired(folder, source, sync_of)).posts == 0
        change_marks(folder, full_at_ms=START_MS)
        assert run(paired(folder, source, sync_of)).posts == 1
        source.close()


class Owing(Keeper):
    """Cuts the connection, or keeps posts to itself, when it was asked for posts `after` times."""

    after = 1
    cuts = True

    def give(self, request_id: bytes, hashes: Iterable[bytes]) -> None:
        if len(self.asked(PostRequest)) <= self.after:
            super().give(request_id, hashes)
        elif self.cuts:
            self.cut()
        else:
            self.say(PostResponse(request_id, ()))


@pytest.mark.parametrize("cuts", [True, False])
def test_failed_pass_leaves_no_mark(cuts: bool) -> None:
    posts = spread(1500)

    async def main(folder: Path) -> None:
        with CableStore.open(folder) as store:
            async with Node(store, replace(QUICK, page_hashes=400)) as node:
                async with raw_listener(Owing, posts=posts, cuts=cuts) as (address, _):
                    if cuts:
                        with pytest.raises(Exception, match="ended the connection"):
                            await sync_of(node, address)
                    else:
                        assert (await sync_of(node, address)).missing > 0
                    assert node.marks.get(str(address), "default") is None
                async with raw_listener(Keeper, posts=posts) as (address, _):
                    report = await sync_of(node, address)
                    assert 0 < report.posts < 1500
                    assert node.marks.get(str(address), "default") is not None
            assert store.check().is_clean

    with scratch_folder() as folder:
        run(main(folder))


# --- peers that are lost -----------------------------------------------------------------------


def test_what_a_lost_peer_owes_is_asked_of_others() -> None:
    posts = spread(300)

    async def main() -> None:
        async with network(memory("a")) as net:
            node = net.nodes[0]
            owing = await raw_peer(net.addresses[node], Owing, posts=posts, after=0, cuts=False)
            owing.give = lambda *_: None  # takes its time
            await until(lambda: owing.asked(PostRequest))
            other = await raw_peer(net.addresses[node], Keeper, posts=posts)
            await until(lambda: other.asked(TimeRangeRequest))
            await asyncio.sleep(0.1)
            assert not other.asked(PostRequest), "what one was asked is asked of nobody else meanwhile"
            owing.cut()
            await until(lambda: all(node.store.post(post.hash) is not None for post in posts))
            await owing.close()
            await other.close()
            await until(lambda: not len(node.sync.wanted) and not node.sync.storing)

    run(main())


# --- stopping ----------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
def test_stop_during_heavy_sync(key: bytes | None) -> None:
    """What was received is stored, and the peer sees the end of the stream."""

    async def main() -> None:
        stores = memory("a", posts=spread(5000)), memory("b")
        async with network(*stores, settings=with_key(QUICK, key)) as net:
            link = await net.link(*reversed(net.nodes))
            await until(lambda: stores[1].last_sequence > 300)
            serving, fetching = net.nodes
            await net.stop(fetching)
            await until(lambda: not serving.connections)
            reasons = net.log.reasons()
            assert "the node stops" in reasons
            assert all("without the end" not in reason and "broke" not in reason for reason in reasons), reasons
            assert link.closed.done()
            assert not fetching.sync.storing, "it came, and was not stored"
            assert not asyncio.all_tasks() - {asyncio.current_task(), *serving._tasks}

    run(main())


def test_lost_peers_leave_nothing() -> None:
    """No task, no hash, no question stays behind for peers that are gone."""

    async def main() -> None:
        async with network(memory("a", posts=spread(2000)), memory("b")) as net:
            choice = Random(1)
            one, other = net.nodes
            await net.link(other, one)
            await cut_and_mend(net, choice, 30)
            await net.are_alike()
            tasks = {node: len(node._tasks) for node in net.nodes}
            assert max(tasks.values()) < 12, tasks
            for link in net.links:
                link.close("the end")
            await every(net.nodes, lambda node: not node.connections)
            await every(net.nodes, lambda node: len(node._tasks) == 1)
            for node in net.nodes:
                assert not len(node.sync.wanted)
                assert not node.sync._peers
                assert not node.live.count

    run(main())
