"""Hostile members: each limit of causal logs by its name, and the state when a member reaches it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from sds_people import CHANNEL, SMALL, START_MS, Member, changed, content, database_of, delivered, opened, sends

from cablestore import limits
from cablestore.sds import acknowledgements, bloom, delivery, log, repair_answers
from cablestore.sds.bloom import ForeignFilter
from cablestore.sds.codec import encode
from cablestore.sds.delivery import ReceiveResult
from cablestore.sds.dialects import SPEC, SdsDialect
from cablestore.sds.effects import Lost, Missing
from cablestore.sds.message import HistoryEntry, SdsMessage
from cablestore.sds.settings import Backoff

QUIET = replace(SMALL, sync_interval_ms=None, resend=Backoff(10**9, 10**9), retrieve=Backoff(10**9, 10**9))


def test_lamport_times_far_ahead_are_rejected() -> None:
    """MAX_SDS_LAMPORT_AHEAD_MS: otherwise, all members' clocks would follow it permanently."""
    ann = Member("ann")
    most = limits.MAX_SDS_LAMPORT_AHEAD_MS
    assert ann.receives(content("ahead", at=most)) == [ReceiveResult.DELIVERED]
    for at in (most + 1, 2**64 - 1 - START_MS):
        received = ann.received(content(f"too far {at}", at=at))
        assert received.verdict is ReceiveResult.REFUSED
        assert "ahead of the clock" in (received.reason or "")
        assert ann.receives(changed(content("sync", at=at), content=None)) == [ReceiveResult.REFUSED]
    assert opened(ann.says("x")).lamport_ms == START_MS + most + 1
    bob = Member("bob")
    data = ann.says("y")
    assert bob.receives(data) == [ReceiveResult.REFUSED]
    bob.now_ms += 10  # time advances, and a resent message is accepted
    assert bob.receives(changed(data, causal_history=())) == [ReceiveResult.DELIVERED]


def test_the_number_of_waiting_messages_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_SDS_WAITING: a sender's last messages in the log are dropped, an eighth of the space in one step.

    Messages that are needed first stay.
    """
    monkeypatch.setattr(delivery, "MAX_SDS_WAITING", 24)
    bob = Member("bob", QUIET)
    assert set(bob.receives(*(content(f"m{i:02}", f"none {i}", at=i) for i in range(24)))) == {ReceiveResult.WAITING}
    late = bob.received(content("last", "nothing", at=99))
    assert late.verdict is ReceiveResult.REFUSED
    assert "too many waiting messages" in (late.reason or "")
    counters = bob.channel.counters()
    assert (counters.waiting, counters.missing) == (21, 21)  # with the new one, 25 were 4 more than 21
    assert bob.receives(content("first", "nothing", at=-1)) == [ReceiveResult.WAITING]
    assert "none 21" not in [entry.message_id for entry in bob.channel.missing()]
    assert bob.receives(content("nothing", at=-2)) == [ReceiveResult.DELIVERED]
    assert bob.ids() == ["nothing", "first"]
    assert bob.receives(content("m21", "none 21", at=21)) == [ReceiveResult.WAITING]  # it may arrive again


def test_a_dropped_message_is_accepted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_SDS_WAITING: dropping a message leaves no state."""
    monkeypatch.setattr(delivery, "MAX_SDS_WAITING", 3)
    bob = Member("bob", QUIET)
    chain = [content("a"), content("b", "a", at=1), content("c", "b", at=2), content("d", "c", at=3)]
    bob.receives(chain[3], chain[2], chain[1])  # d, c and b wait
    bob.effects()
    bob.receives(content("x", "y", at=-5))  # d is dropped
    assert bob.receives(content("y", at=-6), chain[0]) == [ReceiveResult.DELIVERED] * 2
    assert delivered(bob.effects()) == ["y", "x", "a", "b", "c"]
    assert bob.receives(chain[3]) == [ReceiveResult.DELIVERED]


def test_messages_do_not_wait_for_a_dropped_message_that_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_SDS_WAITING: the message was declared lost and listed, arrived late, and was dropped while it waited."""
    bob = Member("bob", replace(QUIET, repair=None, lost_after_ms=1_000))
    bob.receives(content("cyd was here", sender="cyd", at=-9), content("b", "m", at=6))
    assert Lost(HistoryEntry("m", None, "eve")) in bob.tick(1_000)
    assert bob.receives(content("m", "x", at=5), content("c", "m", sender="cyd", at=9)) == [ReceiveResult.WAITING] * 2
    monkeypatch.setattr(delivery, "MAX_SDS_WAITING", 2)
    assert bob.receives(content("y", "z", at=-1)) == [ReceiveResult.WAITING]  # m is dropped
    assert bob.ids() == ["cyd was here", "b", "c"]
    assert [entry.message_id for entry in bob.channel.missing()] == ["z"]
    assert bob.receives(content("d", "m", at=20)) == [ReceiveResult.DELIVERED]
    assert bob.receives(content("m", at=5)) == [ReceiveResult.DELIVERED]
    assert bob.ids() == ["cyd was here", "m", "b", "c", "d"]


def test_the_bytes_of_waiting_messages_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_SDS_WAITING_SIZE_BYTES: one arrival may deliver all of them in one write."""
    monkeypatch.setattr(delivery, "MAX_SDS_WAITING_SIZE_BYTES", 10_000)
    bob = Member("bob", QUIET)
    for i in range(50, 0, -1):
        bob.receives(content(f"m{i:02}", "a", at=i, text="x" * 900))
    counters = bob.channel.counters()
    assert counters.waiting == 10
    assert 9_000 < counters.waiting_size_bytes <= 10_000
    bob.receives(content("a"))
    assert bob.ids() == ["a", *(f"m{i:02}" for i in range(1, 11))]
    counters = bob.channel.counters()
    assert (counters.waiting, counters.waiting_size_bytes, counters.missing) == (0, 0, 0)


def test_missing_messages_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_SDS_MISSING: hostile messages list nonexistent ones; honest ones still have space."""
    monkeypatch.setattr(delivery, "MAX_SDS_MISSING", 100)
    bob = Member("bob", QUIET)
    for i in range(30):
        bob.receives(content(f"flood {i}", *(f"nothing {i} {j}" for j in range(20)), at=1_000 + i))
    assert bob.channel.counters().missing <= 100
    assert bob.receives(content("b", "a", at=1)) == [ReceiveResult.WAITING]
    assert bob.channel.counters().missing <= 100
    bob.receives(content("a"))
    assert bob.ids() == ["a", "b"]


def test_sync_messages_use_at_most_half_of_the_space_for_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_SDS_MISSING: the other half is for messages that others wait for."""
    monkeypatch.setattr(delivery, "MAX_SDS_MISSING", 100)
    bob = Member("bob", QUIET)
    for i in range(30):
        bob.receives(changed(content(f"s{i}", *(f"nothing {i} {j}" for j in range(20))), content=None))
    assert 40 < bob.channel.counters().missing <= 50
    assert bob.receives(content("b", "a", at=1)) == [ReceiveResult.WAITING]


def test_nonexistent_messages_are_declared_lost() -> None:
    """MAX_SDS_TIMERS: one write gives up this number of a flood; the next writes give up the others."""
    bob = Member("bob", replace(QUIET, lost_after_ms=1_000, repair=None))
    bob.receives(*(content(f"flood {i}", *(f"nothing {i} {j}" for j in range(200)), at=i) for i in range(3)))
    assert len(bob.effects_of(Missing)) == 600
    lost = [sum(isinstance(effect, Lost) for effect in bob.tick(1_000)) for _ in range(4)]
    assert lost == [256, 256, 88, 0]
    assert bob.ids() == ["flood 0", "flood 1", "flood 2"]
    assert bob.channel.counters().missing == 0


def test_answers_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_SDS_ANSWERS: a member whose request was not recorded sends it again."""
    monkeypatch.setattr(repair_answers, "MAX_SDS_ANSWERS", 10)
    bob = Member("bob", QUIET)
    bob.receives(*(content(f"m{i}", at=i) for i in range(30)))
    asks = (changed(content(f"ask {i}"), repair_request=(HistoryEntry(f"m{i}"),)) for i in range(30))
    bob.receives(*asks)
    assert bob.channel.counters().answers == 10
    bob.effects()
    assert len(sends(bob.tick(120_000))) == 10
    assert bob.channel.counters().answers == 0


def test_a_filter_is_compared_with_a_limited_number_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_SDS_REVIEWED: a hostile filter has the same cost for any number of unacknowledged messages."""
    asked: list[str] = []

    def counted(message_id: str, shape: ForeignFilter, dialect: SdsDialect) -> tuple[int, ...]:
        asked.append(message_id)
        return bloom.positions(message_id, shape, dialect)

    monkeypatch.setattr(acknowledgements, "positions", counted)
    ann = Member("ann", QUIET)
    with ann.log.batch():
        for i in range(500):
            ann.channel.send(str(i).encode(), START_MS)
    ann.effects()
    ann.receives(changed(content("m"), bloom_filter=bytes(376)))
    assert len(asked) == limits.MAX_SDS_REVIEWED


def test_long_lists_are_written_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_SDS_BATCH: a write is held in memory."""
    monkeypatch.setattr(log, "MAX_SDS_BATCH", 10)
    bob = Member("bob", QUIET)
    writes: list[int] = []
    real = database_of(bob.log).write

    def counted(rows: Mapping[bytes, bytes | None], *, sync: bool) -> None:
        writes.append(len(rows))
        real(rows, sync=sync)

    monkeypatch.setattr(database_of(bob.log), "write", counted)
    received = bob.channel.receive_all((content(f"m{i}", at=i) for i in range(35)), START_MS)
    assert len(writes) == 4
    assert [each.message_id for each in received] == [f"m{i}" for i in range(35)]


def test_the_outbox_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_SDS_EFFECTS_READ: each is a message with a filter."""
    monkeypatch.setattr(log, "MAX_SDS_EFFECTS_READ", 10)
    bob = Member("bob", QUIET)
    bob.receives(*(content(f"m{i}", at=i) for i in range(25)))
    parts = [len(bob.effects()) for _ in range(4)]
    assert parts == [10, 10, 5, 0]


def test_giant_histories_and_ids_are_rejected() -> None:
    """MAX_SDS_HISTORY, MAX_SDS_ID_SIZE_BYTES: the cost of a message in rows and keys."""
    bob = Member("bob", QUIET)
    most = limits.MAX_SDS_HISTORY
    names = [f"n{i}" for i in range(most)]
    bob.receives(*(content(name) for name in names))
    assert bob.receives(content("m", *names, at=1)) == [ReceiveResult.DELIVERED]
    field = encode(SdsMessage("g", CHANNEL, "eve", 1, (HistoryEntry("x"),), content=b"x"), SPEC)
    entry = bytes.fromhex("5a030a0178")
    assert entry in field
    assert bob.receives(field.replace(entry, entry * (most + 1))) == [ReceiveResult.REFUSED]
    long_id = content("i" * 120).replace(b"\x12\x78" + b"i" * 120, b"\x12\x81\x04" + b"i" * 513)
    assert bob.receives(long_id) == [ReceiveResult.REFUSED]
    assert bob.receives(content("i" * limits.MAX_SDS_ID_SIZE_BYTES)) == [ReceiveResult.DELIVERED]
