"""Posts of a store as messages of a causal log: one id, delivery is ingest, and stored posts are not missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from people import ANN, BOB, Person
from sds_people import CHANNEL, PATIENT, START_MS, Member, changed, content, database_of

from cablestore import CableStore, StoreOptions
from cablestore.errors import OpenError, SdsError
from cablestore.protocol.body import LOCAL_ONLY, Block, Join
from cablestore.protocol.crypto import post_hash
from cablestore.sds.delivery import ReceiveResult
from cablestore.sds.effects import Deliver, Effect, Lost, Send
from cablestore.sds.log import CausalLog
from cablestore.sds.posts import PostChannel, causal_log, channel_status


class Client:
    """Chat client: a store, and a causal log beside it."""

    def __init__(self, person: Person, name: str) -> None:
        self.person = person
        self.store = CableStore.in_memory(identity=person.identity, options=StoreOptions(verify_threads=1))
        self.log = CausalLog.in_memory()
        self.posts = PostChannel(self.store, self.log, CHANNEL, name, PATIENT)

    def texts(self) -> list[str]:
        return [m.text for m in reversed(self.store.messages("default").messages)]

    def says(self, text: str, at: int) -> bytes:
        self.store.ingest([(post := self.person.text("default", text, at=START_MS + at)).raw])
        assert self.posts.send(post, START_MS + at)
        assert not self.posts.send(post, START_MS + at)
        return self.sent()[-1].data

    def effects(self) -> list[Effect]:
        found = self.posts.outbox()
        if found:
            self.posts.confirm(found[-1][0])
        return [effect for _, effect in found]

    def sent(self) -> list[Send]:
        return [effect for effect in self.effects() if isinstance(effect, Send)]


@pytest.fixture
def clients() -> Iterator[tuple[Client, Client]]:
    ann, bob = Client(ANN, "ann"), Client(BOB, "bob")
    yield ann, bob
    for client in (ann, bob):
        assert client.store.check().is_clean
        client.store.close()


def test_posts_are_stored_in_the_order_of_the_log(clients: tuple[Client, Client]) -> None:
    ann, bob = clients
    said = [ann.says(str(i), at=i) for i in range(3)]
    for data in reversed(said):
        bob.posts.receive(data, START_MS)
    assert len(bob.effects()) == 3 + 2  # two were missing for a while
    assert bob.texts() == ["0", "1", "2"]
    answer = bob.says("3", at=3)
    assert ann.posts.receive(answer, START_MS).verdict is ReceiveResult.DELIVERED
    ann.effects()
    assert ann.texts() == ["0", "1", "2", "3"]
    ids = [[message.message_id for message in client.posts.channel.log()] for client in clients]
    assert ids[0] == ids[1]
    assert all(ann.store.get(bytes.fromhex(message_id)) for message_id in ids[0])


def test_a_crash_between_ingest_and_confirmation_is_harmless(clients: tuple[Client, Client]) -> None:
    ann, bob = clients
    bob.posts.receive(ann.says("x", at=0), START_MS)
    first = bob.posts.outbox()
    assert bob.texts() == ["x"]
    again = PostChannel(bob.store, CausalLog.in_memory(database_of(bob.log)), CHANNEL, "bob", PATIENT)
    assert again.outbox() == first
    assert bob.texts() == ["x"]


def test_an_id_that_differs_from_the_hash_is_rejected(clients: tuple[Client, Client]) -> None:
    """If such ids were accepted, the first sender could replace a post by any bytes."""
    ann, bob = clients
    data = ann.says("x", at=0)
    received = bob.posts.receive(changed(data, content=b"forged"), START_MS)
    assert received.verdict is ReceiveResult.REFUSED
    assert "hash" in (received.reason or "")
    assert bob.posts.receive(content("m"), START_MS).verdict is ReceiveResult.REFUSED
    assert bob.posts.receive(data, START_MS).verdict is ReceiveResult.DELIVERED


def test_a_post_that_the_store_rejects_is_not_stored(clients: tuple[Client, Client]) -> None:
    """The post's signature is forged, but not its hash: all logs keep it, and all stores reject it."""
    ann, bob = clients
    raw = bytearray(ANN.text("default", "x").raw)
    raw[40] ^= 1  # in the signature
    forged = bytes(raw)
    ann.posts.channel.send(forged, START_MS, message_id=post_hash(forged).hex())
    data = [*(effect.data for effect in ann.sent()), ann.says("fine", at=1)]
    assert [bob.posts.receive(each, START_MS).verdict for each in data] == [ReceiveResult.DELIVERED] * 2
    bob.effects()
    assert bob.texts() == ["fine"]
    assert bob.store.get(post_hash(forged)) is None


def test_reconciled_posts_are_not_missing(clients: tuple[Client, Client]) -> None:
    """A returning member gets the missed posts in other ways; the log continues with the newest."""
    ann, bob = clients
    for i in range(30):
        ann.says(str(i), at=i)
    newest = ann.says("newest", at=30)
    bob.posts.receive(newest, START_MS)
    assert not [effect for effect in bob.effects() if isinstance(effect, Deliver)]
    bob.store.ingest([post.raw for post in ann.store.posts_by(ANN.key) if b"newest" not in post.raw])
    assert bob.posts.meet_stored() == 2
    assert [type(effect) for effect in bob.effects()] == [Deliver]
    assert bob.texts() == ann.texts()
    # One that arrives before its dependencies, which are already stored, does not wait for `meet_stored`.
    later = ann.says("later", at=40)
    last = ann.says("last", at=41)
    bob.store.ingest([post.raw for post in ann.store.posts_by(ANN.key) if b"later" in post.raw])
    bob.posts.receive(last, START_MS)
    bob.effects()
    assert any(b"last" in (effect.message.content or b"") for effect in bob.effects() if isinstance(effect, Deliver))
    assert bob.posts.receive(later, START_MS).verdict is ReceiveResult.DELIVERED


def test_a_missing_message_is_retrieved_from_a_store_by_its_id(clients: tuple[Client, Client]) -> None:
    ann, bob = clients
    for i in range(10):
        ann.says(str(i), at=i)
    bob.posts.receive(ann.says("newest", at=10), START_MS)
    while missing := list(bob.posts.channel.missing()):
        for entry in missing:
            received = bob.posts.retrieve(entry.message_id, ann.posts.answer, START_MS)
            assert received is not None
            assert received.verdict is not ReceiveResult.REFUSED
    assert not [effect for effect in bob.effects() if isinstance(effect, Lost)]
    assert bob.texts() == ann.texts()
    assert bob.posts.retrieve("00" * 32, ann.posts.answer, START_MS) is None


def test_a_private_post_is_not_sent(clients: tuple[Client, Client]) -> None:
    ann, _ = clients
    block = Block("", LOCAL_ONLY, (BOB.key,), 0, 0)
    with pytest.raises(SdsError, match="local-only"):
        ann.posts.send(ANN.post(block), START_MS)
    assert not ann.effects()


def test_the_automatic_join_before_a_text_is_sent_before_it(clients: tuple[Client, Client]) -> None:
    """wire.md 5.4.3: also for members that communicate only by the causal log, and again after a leave."""
    ann, bob = clients
    first, second = ann.store.post("default", "first"), ann.store.post("default", "second")
    left = ann.store.leave("default")
    third = ann.store.set_topic("default", "third")
    for post in (first, second, left, third):
        assert ann.posts.send(post, START_MS)
        assert not ann.posts.send(post, START_MS)
    for sent in ann.sent():
        assert bob.posts.receive(sent.data, START_MS).verdict is ReceiveResult.DELIVERED
    bob.effects()
    assert [event.post.body for event in bob.store.events(timeout_s=0) if event.post is not None] == [
        Join("default"),
        first.body,
        second.body,
        left.body,
        Join("default"),
        third.body,
    ]
    assert [user.public_key for user in bob.store.members("default")] == [ANN.key]
    assert ann.store.dump_digest() == bob.store.dump_digest()


def test_the_status_of_channels_is_read_from_open_and_from_closed_logs(tmp_path: Path) -> None:
    with CableStore.in_memory() as store, pytest.raises(OpenError, match="Use a store in a folder"):
        channel_status(store)
    with CableStore.open(tmp_path / "store") as store:
        with pytest.raises(OpenError, match="no causal logs found"):
            channel_status(store)
        with causal_log(store) as log:
            ann = Member("ann", PATIENT, log)
            ann.says("x")
            ann.receives(content("c", "b", at=5))
            (here,) = channel_status(store)
        (closed,) = channel_status(store)
    status = {
        "channel": CHANNEL, "sender": "ann", "dialect": "spec", "messages": 1, "waiting": 1, "missing": 1,
        "unacknowledged": 1, "lost": 0, "effects": 1, "lamport_ms": START_MS,
    }  # fmt: skip
    for each in (here, closed):
        assert {name: value for name, value in asdict(each).items() if name != "disk_size_bytes"} == status


def test_messages_whose_ids_are_not_hashes_of_posts_stay_missing(clients: tuple[Client, Client]) -> None:
    ann, _ = clients
    stored = ann.person.text("default", "stored", at=START_MS)
    ann.store.ingest([stored.raw])
    for missing in ("not hex", "00" * 31, "00" * 32, stored.hash.hex()):
        ann.posts.receive(changed(content(f"sync {missing}", missing), content=None), START_MS)
    assert ann.posts.meet_stored() == 1
    assert sorted(entry.message_id for entry in ann.posts.channel.missing()) == ["00" * 31, "00" * 32, "not hex"]
