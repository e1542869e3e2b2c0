"""Our channel with one of @waku/sds, over a transport that loses a fifth of all messages."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from sds_js import JsPeer, node_modules
from sds_people import CHANNEL, START_MS, Member, opened

from cablestore.sds.delivery import ReceiveResult
from cablestore.sds.effects import Acknowledged, Deliver, Send
from cablestore.sds.message import MessageKind
from cablestore.sds.repair import RepairParameters
from cablestore.sds.settings import Backoff, Settings

REPAIR = RepairParameters(2_000, 6_000)
SETTINGS = Settings(
    repair=REPAIR,
    repair_backoff=Backoff(6_000, 20_000),
    resend=Backoff(5_000, 20_000),
    resend_possibly=Backoff(10_000, 20_000),
    resends=100,
    sync_interval_ms=5_000,
)


class Pair:
    """Ann, a member of our implementation, and Bob, a member of theirs. `step` advances both by a second."""

    def __init__(self, bob: JsPeer, seed: int) -> None:
        self.random = random.Random(seed)
        self.loss = 0.2
        self.ann = Member("ann", SETTINGS)
        self.bob = bob
        self.now_ms = START_MS
        bob.clock(START_MS)
        bob.join(CHANNEL, "bob", history=5, repair=REPAIR)
        self.sent: dict[str, bytes] = {}
        self.counts: Counter[str] = Counter()
        self.delivered: list[str] = []

    def step(self) -> None:
        self.now_ms += 1_000
        self.ann.now_ms = self.now_ms
        self.bob.clock(self.now_ms)
        self.ann.channel.tick(self.now_ms, self.random.random)
        self.from_ann()
        swept = self.bob.sweep(resend=self.now_ms % 10_000 == 0)
        self.from_bob(swept.out)
        if self.now_ms % 5_000 == 0:
            self.from_bob(self.bob.sync().out)
        if self.now_ms % 30_000 == 0:  # as in Waku's SDK: from a store, which has the sent messages
            for entry in swept.value["missing"]:
                missing_id = entry["message_id"]
                if missing_id in self.sent:
                    self.counts["they retrieved"] += 1
                    self.from_bob(self.bob.receive(self.sent[missing_id]).out)

    def from_ann(self) -> None:
        for effect in self.ann.effects():
            if isinstance(effect, Send):
                self._count("we", effect.data)
                if self.random.random() >= self.loss:
                    self.from_bob(self.bob.receive(effect.data).out)
            elif isinstance(effect, Deliver):
                self.delivered.append(effect.message.message_id)
            self.counts["acknowledged to us"] += isinstance(effect, Acknowledged)

    def from_bob(self, out: list[bytes]) -> None:
        for data in out:
            self._count("they", data)
            if self.random.random() >= self.loss:
                assert self.ann.received(data).verdict is not ReceiveResult.REFUSED

    def _count(self, sender: str, data: bytes) -> None:
        message = opened(data)
        self.counts[f"{sender} ask"] += len(message.repair_request)
        self.counts[f"{sender} {message.kind.value}"] += 1
        if message.kind is MessageKind.CONTENT:
            self.sent.setdefault(message.message_id, data)

    def is_equal(self) -> bool:
        ours = {message.message_id for message in self.ann.channel.log()}
        theirs = self.bob.state()
        return ours == {message_id for message_id, _ in theirs.history} == set(self.sent) and not theirs.incoming


@pytest.mark.parametrize("messages", [150, pytest.param(1_000, marks=pytest.mark.timeout(900))])
def test_all_messages_are_delivered_although_a_fifth_is_lost(messages: int) -> None:
    node_modules()
    with JsPeer() as bob:
        pair = Pair(bob, seed=messages)
        for number in range(messages):
            if pair.random.random() < 0.5:
                pair.ann.channel.send(b"ann %d" % number, pair.now_ms)
                pair.from_ann()
            else:
                pair.from_bob(bob.send(b"bob %d" % number).out)
            if pair.random.random() < 0.3:
                pair.step()
        for _ in range(600):
            pair.step()
            if pair.is_equal() and not pair.ann.channel.counters().outgoing and not bob.state().outgoing:
                break
        pair.from_ann()
        assert pair.is_equal()
        assert len(pair.sent) == messages
        assert len(pair.delivered) == len(set(pair.delivered))
        counters = pair.ann.channel.counters()
        assert (counters.outgoing, counters.waiting, counters.missing) == (0, 0, 0)
        assert pair.counts["acknowledged to us"] == sum(
            message.sender_id == "ann" for message in pair.ann.channel.log()
        )
        for what in ("we sync", "they sync", "we ask", "they ask"):
            assert pair.counts[what] > 0, pair.counts
        assert not bob.state().outgoing
