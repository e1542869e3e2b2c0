"""Nodes over real sockets end with the same posts, regardless of interruptions."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from by_hand import CABAL_KEY, on_loop
from history import Model, histories
from hypothesis import given, settings
from hypothesis import strategies as st
from peering import (
    QUICK,
    Keeper,
    Network,
    cut_and_mend,
    every,
    memory,
    network,
    randoms,
    raw_peer,
    run,
    soon,
    until,
    with_key,
)
from people import START_MS, Person
from stores import public

from cablestore import CableStore, Dialect, Post, limits
from cablestore.protocol.body import DELETE, JOIN, LEAVE, ROLE, TEXT, TOPIC, Delete
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.exchange import Fault
from cablestore.protocol.message import (
    HashResponse,
    ListRequest,
    ListResponse,
    Message,
    PostRequest,
    PostResponse,
    StateRequest,
    TimeRangeRequest,
)

Layout = Callable[[Network], Awaitable[None]]
LAYOUTS: dict[str, tuple[int, Layout]] = {
    "two": (2, Network.line),
    "ring": (5, Network.ring),
    "star": (5, Network.star),
    "line": (4, Network.line),
}


# --- histories and what nodes announce of them -------------------------------------------------


def expressible(posts: Iterable[Post]) -> list[Post]:
    """Return the posts that the protocol can express.

    It cannot express deletions of posts without a channel, and earlier topics. Their authors are members only for nodes
    that have these posts, and they are not announced. Nodes also lack memberships that were replaced or deleted, so the
    order of messages cannot depend on the links of such posts.
    """
    known = {post.hash: post for post in public(posts)}
    last = {post.channel: post for post in sorted(known.values(), key=_moment) if post.type == TOPIC}
    kept = [post for post in known.values() if post.type != TOPIC or last[post.channel] is post]
    deletable = {post.hash for post in kept if post.type in (TEXT, TOPIC, JOIN, LEAVE)}
    kept = [post for post in kept if post.type != DELETE or _own_targets(post, known) <= deletable]
    model = Model(kept)
    current = {digest for channel in model.channels() for digest in model.state(channel)}
    linked = {link for post in kept for link in post.links}
    return [p for p in kept if p.type not in (JOIN, LEAVE) or p.hash in current or not p.links or p.hash not in linked]


def lasting(posts: Iterable[Post]) -> list[Post]:
    """Return the posts that all nodes end with, byte by byte: those that an empty node is sent.

    For nodes with the texts, the result includes the deletions of the texts, the first of each text.
    """
    found = expressible(posts)
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
    """Return a text for each channel, so that its name is announced even if all its other posts are deleted."""
    someone = Person("anchor", dialect)
    return [someone.text(channel, "here", at=START_MS) for channel in sorted({p.channel for p in posts if p.channel})]


def dealt(posts: Iterable[Post], hands: int, choice: Random) -> list[list[Post]]:
    """Distribute posts among nodes, some of them to several. Each share is in random order."""
    found: list[list[Post]] = [[] for _ in range(hands)]
    for post in posts:
        for hand in choice.sample(found, choice.choice((1, 1, 1, 2))):
            hand.append(post)
    for hand in found:
        choice.shuffle(hand)
    return found


def assert_equals_model(store: CableStore, model: Model) -> None:
    """Check that the answers of a store equal those of the model."""
    assert [channel.name for channel in store.channels()] == model.channels()
    for channel in model.channels():
        said = store.messages(channel, 1000, newest_first=False).messages
        assert [message.hash for message in said] == model.messages(channel)
        assert store.topic(channel) == model.topic(channel)
        members = list(store.members(channel))
        assert [user.public_key for user in members] == model.members(channel)
        assert [user.name for user in members] == [model.name(user.public_key) for user in members]
    for channel in (*model.channels(), ""):
        for digest in model.moderation(channel, 0):
            assert model.live[digest].type == ROLE or store.get(digest) is not None


async def agree(net: Network, model: Model) -> None:
    def all_agree() -> bool:
        for node in net.nodes:
            assert_equals_model(node.store, model)
        return True

    def try_() -> bool:
        try:
            return all_agree()
        except AssertionError:
            return False

    try:
        await until(try_)
    except AssertionError:
        all_agree()  # fails with the missing posts
        raise


# --- convergence -------------------------------------------------------------------------------


@pytest.mark.thorough("ring", "star", "two")
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=8)
@given(histories(), randoms, st.booleans())
def test_nodes_in_any_layout_have_equal_dumps(
    layout: str, history: tuple[Dialect, list[Post]], choice: Random, is_encrypted: bool
) -> None:
    """Deletions arrive in any order, before the texts and after them. Every node has had the texts."""
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
        async with network(*nodes, settings=with_key(QUICK, CABAL_KEY if is_encrypted else None)) as net:
            await lay(net)
            await net.are_alike()
            held = {event.hash for event in net.nodes[0].store.events(timeout_s=0) if event.kind.name == "ACCEPTED"}
            assert set(known) - doomed <= held

    run(main())


@pytest.mark.thorough
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=8)
@given(histories(), randoms, st.integers(0, 4))
def test_all_users_see_the_same_state(
    layout: str, history: tuple[Dialect, list[Post]], choice: Random, cuts: int
) -> None:
    """All users see the same state with any shares, late joiners, cut links and posts during the sync."""
    dialect, posts = history
    posts = expressible(posts)
    posts += anchors(posts, dialect)
    count, lay = LAYOUTS[layout]
    hands = dealt(posts, 2 * count, choice)

    async def main() -> None:
        nodes = [memory(index, dialect, hand) for index, hand in enumerate(hands[:count])]
        late = memory("late", dialect)
        async with network(*nodes, late, settings=with_key(QUICK, CABAL_KEY)) as net:
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


# --- dishonest peers ---------------------------------------------------------------------------


class FalsePeer(Keeper):
    """Peer that knows the channels and their posts. `how` names its fault."""

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
        """Offer posts and send others."""
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


FALSE_CLAIMS: dict[str, str | None] = {
    "garbage": None,
    "foreign posts": Fault.WRONG_TYPE.value,
    "wrong posts": Fault.UNREQUESTED_POSTS.value,
    "bad signatures": "invalid posts",
    "endless hashes": None,
    "wrong type": Fault.WRONG_TYPE.value,
    "silent": None,
}


@pytest.mark.thorough("foreign posts", "wrong posts", "wrong type")
@pytest.mark.parametrize("how", FALSE_CLAIMS)
@on_loop
async def test_false_claims_of_a_peer_do_not_prevent_convergence(how: str) -> None:
    """The peer offers each of five honest nodes what the node lacks. The nodes get all posts from each other."""
    posts = [Person(f"p{n % 5}").text("default", str(n)) for n in range(60)]
    hands = dealt(posts, 5, Random(how))
    quick = replace(QUICK, answer_timeout_s=1.0)
    async with network(*(memory(n, posts=hand) for n, hand in enumerate(hands)), settings=quick) as net:
        false_peers = [await raw_peer(net.addresses[node], FalsePeer, how=how, posts=posts) for node in net.nodes]
        await net.ring()
        await net.are_alike()
        assert {post.hash for post in posts} <= {e.hash for e in net.nodes[0].store.events(timeout_s=0)}
        fault = FALSE_CLAIMS[how]
        if fault:
            await until(
                lambda: all(peer.is_over for peer in false_peers), lambda: (net.log.reasons(), net.log.faults())
            )
            assert sum(fault in reason for reason in net.log.reasons()) == len(false_peers), net.log.reasons()
        for node in net.nodes:
            assert len(node.parts.sync.fetches.pending) <= limits.MAX_PENDING_HASHES_PER_PEER * len(node.connections)
        for peer in false_peers:
            await peer.close()
        await every(net.nodes, lambda node: not len(node.parts.sync.fetches.pending))
        assert not any(link.closed.done() for link in net.links), "an honest link was closed"
