"""A member that was away for a month gets posts by reconciliation and their positions by outlines.

No message is sent again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from peering import HOST, run
from people import ANN, BOB, CYD, Person
from sds_people import CHANNEL, START_MS, opened

from cablestore import CableStore, Post, StoreOptions, Text
from cablestore.errors import SdsError
from cablestore.peers import Address, Node, ReconcileReport
from cablestore.sds import (
    COMPACT_FILTER,
    CausalLog,
    Deliver,
    Lost,
    MessageKind,
    OutlinesResult,
    PostChannel,
    Send,
    Settings,
)

MONTH_MS = 30 * 86_400_000
BEFORE = 30
SETTINGS = Settings(filter=COMPACT_FILTER)
"""All other values are defaults: repairs, resends, sync messages."""


class Client:
    """Store with a causal log, and its broadcasts."""

    def __init__(self, person: Person, name: str) -> None:
        self.person = person
        self.store = CableStore.in_memory(identity=person.identity, options=StoreOptions(verify_threads=1))
        self.log = CausalLog.in_memory()
        self.posts = PostChannel(self.store, self.log, CHANNEL, name, SETTINGS)
        self.counts: Counter[str] = Counter()
        self.asked_for: list[str] = []

    def says(self, text: str, now_ms: int) -> None:
        post = self.person.text("default", text, at=now_ms)
        self.store.ingest([post.raw], sync=False)
        self.posts.send(post, now_ms)

    def broadcasts(self) -> list[bytes]:
        """Handle the outbox as an application does. Returns the messages for the others."""
        found = []
        while effects := self.posts.outbox():
            for _, effect in effects:
                if isinstance(effect, Send):
                    found.append(effect.data)
                    self.counts[effect.reason.value] += 1
                    message = opened(effect.data)
                    self.asked_for += [entry.message_id for entry in message.repair_request]
                self.counts["lost"] += isinstance(effect, Lost)
                self.counts["delivered"] += isinstance(effect, Deliver)
            self.posts.confirm(effects[-1][0])
        return found

    def ids(self) -> list[str]:
        return [message.message_id for message in self.posts.channel.log()]

    def all_posts(self) -> Iterator[Post]:
        for person in (ANN, BOB, CYD):
            yield from self.store.posts_by(person.key)


def talk(clients: list[Client], now_ms: int, *, seconds: int) -> None:
    """Advance time for these members, which receive each other's messages."""
    for second in range(seconds):
        for client in clients:
            client.posts.channel.tick(now_ms + 1_000 * second, lambda: 0.5)
        carry(clients, now_ms + 1_000 * second)


def carry(clients: list[Client], now_ms: int) -> None:
    """Deliver all messages, and those that follow from them, to all of these."""
    while sent := [(client, client.broadcasts()) for client in clients]:
        for sender, broadcasts in sent:
            for other in clients:
                if other is not sender and broadcasts:
                    other.posts.channel.receive_all(broadcasts, now_ms)
        if not any(broadcasts for _, broadcasts in sent):
            return


def reconcile(here: Client, there: Client) -> int:
    """Reconcile two stores over a connection. Returns the number of bytes for the comparison."""

    async def once() -> ReconcileReport:
        async with Node(there.store) as peer, Node(here.store) as node:
            return await node.reconcile_once(await peer.reconcile_port.listen(Address(HOST, 0)))

    report = run(once())
    return report.sent_comparing_size_bytes + report.received_comparing_size_bytes


@contextmanager
def month(during: int) -> Iterator[tuple[Client, Client, Client]]:
    """Create three members that talked until each had all messages.

    Then Bob left, and the others wrote N more in a month.
    """
    members = Client(ANN, "ann"), Client(BOB, "bob"), Client(CYD, "cyd")
    ann, bob, cyd = members
    for number in range(BEFORE):
        members[number % 3].says(str(number), START_MS + 1_000 * number)
        carry([*members], START_MS + 1_000 * number)
    talk([*members], START_MS + 60_000, seconds=120)
    for number in range(during):
        now_ms = START_MS + MONTH_MS // during * (number + 1)
        (ann, cyd)[number % 2].says(f"of the month {number}", now_ms)
        carry([ann, cyd], now_ms)
    bob.says("written on the train", START_MS + MONTH_MS // 2)
    bob.broadcasts()  # no member receives it
    talk([ann, cyd], START_MS + MONTH_MS, seconds=60)
    assert len(ann.ids()) == BEFORE + during
    yield members
    for client in members:
        assert client.store.check().is_clean
        client.store.close()


@pytest.mark.thorough
def test_a_member_catches_up_after_a_month_without_resends() -> None:
    with month(1_000) as clients:
        _month_away(clients)


def _month_away(clients: tuple[Client, Client, Client]) -> None:
    ann, bob, cyd = clients
    during = len(ann.ids()) - BEFORE
    back_ms = START_MS + MONTH_MS + 3_600_000
    for client in clients:
        client.counts.clear()
        client.asked_for.clear()
    assert len(set(ann.ids()) - set(bob.ids())) == during == 1_000

    size_bytes = reconcile(bob, ann)
    assert size_bytes < 42 * during  # ids and fingerprints: a hash of each, and some overhead
    assert len(list(bob.all_posts())) == BEFORE + during + 1

    outlines: list[bytes] = []
    while page := ann.posts.outlines(START_MS, after=outlines[-1] if outlines else None, most=700):
        outlines += page
    assert len(outlines) == BEFORE + during
    assert all(
        opened(each).kind is MessageKind.SYNC for each in outlines
    )  # a member that mistakes one for a message does not keep it
    found = bob.posts.add_outlines(outlines, back_ms)
    assert found == OutlinesResult(during, 0)
    assert bob.posts.add_outlines(outlines, back_ms) == OutlinesResult(0, 0)

    for client, text in zip(clients, ("welcome", "I am back", "hello"), strict=True):
        client.says(text, back_ms)
    carry([*clients], back_ms)
    talk([*clients], back_ms, seconds=300)

    assert ann.ids() == bob.ids() == cyd.ids()
    assert len(ann.ids()) == BEFORE + during + 1 + 3
    for client in clients:
        assert client.counts["resend"] <= 1  # the message that Bob wrote on the train
        assert client.counts["repair"] == client.counts["lost"] == 0
        assert not client.asked_for
        assert client.counts["new"] == 1
        assert client.counts["sync"] <= 12
        counters = client.posts.channel.counters()
        assert (counters.waiting, counters.missing, counters.outgoing) == (0, 0, 0)
    assert bob.counts["delivered"] == during + 2
    texts = {post.body.text for post in bob.all_posts() if isinstance(post.body, Text)}
    assert len(texts) == BEFORE + during + 4


@pytest.mark.thorough
def test_messages_received_before_the_outlines_cause_no_requests() -> None:
    """Bob receives messages first, then reconciles, then gets the outlines: the log is equal, without requests."""
    with month(300) as clients:
        _received_before_outlines(clients)


def _received_before_outlines(clients: tuple[Client, Client, Client]) -> None:
    ann, bob, cyd = clients
    during = len(ann.ids()) - BEFORE
    back_ms = START_MS + MONTH_MS + 3_600_000
    for client in clients:
        client.counts.clear()
        client.asked_for.clear()
    ann.says("welcome", back_ms)
    carry([*clients], back_ms)
    assert bob.posts.channel.counters().waiting == 1
    reconcile(bob, ann)
    assert bob.posts.meet_stored() > 0
    assert bob.posts.channel.counters().waiting == 0
    first_ms = next(bob.posts.channel.log()).lamport_ms or 0
    assert bob.posts.add_outlines(ann.posts.outlines(first_ms, most=10_000), back_ms) == OutlinesResult(during, 0)
    talk([*clients], back_ms, seconds=300)
    assert ann.ids() == bob.ids() == cyd.ids()
    assert not any(client.asked_for or client.counts["repair"] or client.counts["lost"] for client in clients)


def test_outlines_of_unknown_posts_and_invalid_outlines_are_not_added() -> None:
    ann, bob = Client(ANN, "ann"), Client(BOB, "bob")
    for number in range(4):
        ann.says(str(number), START_MS + number)
    outlines = ann.posts.outlines()
    assert bob.posts.add_outlines(outlines, START_MS) == OutlinesResult(0, 4)
    assert not bob.ids()
    some = ann.store.get(bytes.fromhex(ann.ids()[0]))
    assert some is not None
    bob.store.ingest([some.raw])
    assert bob.posts.add_outlines(outlines, START_MS) == OutlinesResult(1, 3)
    with pytest.raises(SdsError):
        bob.posts.add_outlines([b"nonsense"], START_MS)
    elsewhere = PostChannel(ann.store, ann.log, "elsewhere", "ann", replace(SETTINGS))
    elsewhere.send(some, START_MS)
    assert bob.posts.add_outlines(elsewhere.outlines(), START_MS) == OutlinesResult(0, 0)
    for client in (ann, bob):
        client.store.close()
