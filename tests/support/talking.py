"""Both sides of a conversation over stores in memory, frame by frame, for tests."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Self

from peering import memory
from people import ANN, BOB, CYD, Person

from cablestore import CableStore, Delete, Post
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.waku import WakuMessage, message_of
from cablestore.reconcile.codec import encode
from cablestore.reconcile.conversation import ArrivedPosts, Hooks, ReconcileConversation
from cablestore.reconcile.dialects import SPEC
from cablestore.reconcile.ids import EVERYTHING, SyncID
from cablestore.reconcile.messages import (
    UNLISTED,
    ConversationMessage,
    Hello,
    PayloadFrame,
    Purpose,
    Terms,
    decode_frame,
    encode_frame,
)
from cablestore.reconcile.payload import ItemSet, Payload, PayloadPart, Shards
from cablestore.reconcile.stored_set import stored_set
from cablestore.reconcile.transfer import encode_message


class Side:
    """Store and its side of a conversation. The end of its `with` block closes the compared state."""

    def __init__(
        self, store: CableStore, terms: Terms | None = None, *, receives_unlisted: bool = True, **options: Any
    ) -> None:
        """Create a side. Without `receives_unlisted` it lists all ids, as older versions do."""
        self.store = store
        self.receives_unlisted = receives_unlisted
        self.snapshot = store.snapshot()
        hooks = Hooks(lambda channels: stored_set(self.snapshot.reader, channels), store.get, random.randbytes)
        self.talk = ReconcileConversation(terms or Terms(), hooks, store.dialect, **options)
        self.said: list[ConversationMessage] = []
        self.heard: list[bytes] = []
        self.came: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.snapshot.close()

    def take(self, frame: bytes) -> None:
        self.heard.append(frame)
        if frame == UNLISTED and not self.receives_unlisted:
            return
        self.store_all(self.talk.receive(frame, at_s=0.0))

    def store_all(self, arrived: list[ArrivedPosts]) -> None:
        for batch, posts in arrived:
            self.came += posts
            self.store.ingest(posts)
            self.store_all(self.talk.stored(batch, at_s=0.0))

    def output(self) -> list[bytes]:
        frames = self.talk.output()
        self.said += [decode_frame(frame)[1] for frame in frames]
        return frames


def talk_between(one: Side, other: Side, *, most: int | None = None) -> int:
    """Begin on one side, and carry frames until both are finished, or `most` of them. Return the number of frames."""
    one.talk.begin()
    wires: dict[int, deque[bytes]] = {0: deque(one.output()), 1: deque()}
    sides = (other, one)
    for carried in itertools.count():
        busy = [number for number, wire in wires.items() if wire]
        if not busy or carried == most:
            assert most is not None or (one.talk.is_finished and other.talk.is_finished)
            return carried
        receiver = sides[busy[0]]
        receiver.take(wires[busy[0]].popleft())
        wires[1 - busy[0]].extend(receiver.output())
    raise AssertionError


def talk_with_slow_disks(one: Side, other: Side) -> None:
    """Begin on one side, and carry frames and store posts in random order until nothing is left to do."""
    sides = (one, other)
    wires: tuple[deque[bytes], deque[bytes]] = (deque(), deque())
    unstored: tuple[deque[ArrivedPosts], deque[ArrivedPosts]] = (deque(), deque())
    one.talk.begin()
    wires[1].extend(one.output())
    while any(wires) or any(unstored):
        number = random.randrange(2)
        side = sides[number]
        if wires[number]:
            unstored[number].extend(side.talk.receive(wires[number].popleft(), at_s=0.0))
        elif unstored[number]:
            batch, posts = unstored[number].popleft()
            side.store.ingest(posts)
            unstored[number].extend(side.talk.stored(batch, at_s=0.0))
        wires[1 - number].extend(side.output())


def reconciled(
    here: CableStore, there: CableStore, *, hear_unlisted: tuple[bool, bool] = (True, True), **options: Any
) -> tuple[Side, Side]:
    one_hears, other_hears = hear_unlisted
    with (
        Side(here, receives_unlisted=one_hears, **options) as one,
        Side(there, receives_unlisted=other_hears) as other,
    ):
        talk_between(one, other)
    return one, other


def conversation(number: int = 120) -> list[Post]:
    """Return texts of three people in two channels, names, joins, topics, deletions before and after their targets."""
    start_ms = 1_700_000_000_000
    people: tuple[Person, ...] = (ANN, BOB, CYD)
    posts = [person.named(f"name {i}", at=start_ms + i) for i, person in enumerate(people)]
    posts += [person.join("default", at=start_ms + 10 + i) for i, person in enumerate(people)]
    texts = [
        people[i % 3].text(("default", "other")[i % 2], f"text {i}", at=start_ms + 1000 * (i // 2))
        for i in range(number)
    ]
    posts += [*texts, ANN.topic("default", "a topic", at=start_ms + 5_000)]
    for i in range(0, number, 10):
        posts.append(people[i % 3].post(Delete((texts[i].hash,)), at=start_ms + 1000 * i - 300))
    return posts


def two_halves(posts: list[Post]) -> tuple[list[Post], list[Post]]:
    """Return posts for two stores.

    Both have one third; each has every second one of the rest. If a store has a deletion, the other one has its target.
    Otherwise the store with only the deletion could not get the skeleton.
    """
    held: tuple[set[Post], set[Post]] = set(), set()
    by_hash = {post.hash: post for post in posts}
    for number, post in enumerate(posts):
        for side in (0, 1) if number % 3 == 0 else (number % 2,):
            held[side].add(post)
            if isinstance(post.body, Delete):
                held[1 - side].update(by_hash[digest] for digest in post.body.hashes)
    return tuple([post for post in posts if post in side] for side in held)  # type: ignore[return-value]  # two of them


def live(store: CableStore) -> set[bytes]:
    """Return the hashes of all posts of a store."""
    with store.snapshot() as snapshot:
        return {sync_id.hash for sync_id in stored_set(snapshot.reader).items(EVERYTHING)}


def content_of(post: Post) -> bytes:
    """Return a post in the form in which it is sent."""
    return encode_message(message_of(post), SPEC)


def content_with_time(raw: bytes, timestamp_ns: int) -> bytes:
    """Return any bytes as a sent post with this time."""
    return encode_message(WakuMessage(raw, "", timestamp_ns, post_hash(raw)), SPEC)


def claiming(*ids: SyncID, reconciled: bool = False) -> PayloadFrame:
    """Return a payload that claims that the sender has these ids."""
    return PayloadFrame(encode(Payload(Shards(), [PayloadPart(EVERYTHING, ItemSet(sorted(ids), reconciled))]), SPEC))


def hello(number: int = 7, **changes: Any) -> bytes:
    said: dict[str, Any] = {"version": 1, "purpose": Purpose.RECONCILE, "dialect": "legacy", "terms": Terms()}
    return encode_frame(number, Hello(**(said | changes)))


def with_stores(*halves: Iterable[Post]) -> list[CableStore]:
    return [memory(f"store {number}", posts=posts) for number, posts in enumerate(halves)]


def vanishing(make: Callable[[int], Post], number: int = 260) -> list[Post]:
    """Return some posts of `make` whose hashes have XOR 0, found with Gaussian elimination over GF(2)."""
    made = [make(i) for i in range(number)]
    basis: dict[int, tuple[int, int]] = {}
    for at, post in enumerate(made):
        value, members = int.from_bytes(post.hash, "big"), 1 << at
        while value and value.bit_length() in basis:
            other, others = basis[value.bit_length()]
            value, members = value ^ other, members ^ others
        if not value:
            return [each for i, each in enumerate(made) if members >> i & 1]
        basis[value.bit_length()] = value, members
    raise AssertionError("among 257 vectors of 256 bits some are dependent")
