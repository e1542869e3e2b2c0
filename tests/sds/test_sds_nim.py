"""Members of nim-sds, simulated by bytes: sync messages are messages without content, which they log and list."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sds_people import CHANNEL, SMALL, START_MS, Member, database_of

from cablestore.sds import history
from cablestore.sds.codec import decode, encode
from cablestore.sds.delivery import ReceiveResult
from cablestore.sds.dialects import NIM, SPEC
from cablestore.sds.effects import Lost, Missing, Reason, Send
from cablestore.sds.message import HistoryEntry, SdsMessage

SETTINGS = replace(SMALL, dialect=NIM, sync_interval_ms=30_000)


def field(number: int, value: bytes | int) -> bytes:
    """Return a protobuf field of nim-sds' message: a number, or bytes of a length below 128."""
    if isinstance(value, bytes):
        return bytes((number << 3 | 2, len(value))) + value
    digits = [(value >> shift & 0x7F) | 0x80 for shift in range(0, max(value.bit_length(), 1), 7)]
    digits[-1] &= 0x7F
    return bytes((number << 3, *digits))


def nim_message(message_id: str, *after: str, sender: str = "nim", at: int = 0, text: bytes = b"") -> bytes:
    """Return a message of nim-sds: id 1, time 2, history 3, channel 4, content 5 (empty in a sync), sender 7."""
    history = b"".join(field(3, field(1, name.encode())) for name in after)
    head = field(1, message_id.encode()) + field(2, START_MS + at) + history
    return head + field(4, CHANNEL.encode()) + field(5, text) + field(7, sender.encode())


def synced(member: Member) -> SdsMessage:
    """Send a sync message as a member."""
    member.tick()
    found = [effect for effect in member.tick(60_001) if isinstance(effect, Send) and effect.reason is Reason.SYNC]
    return decode(found[-1].data, member.settings.dialect)


def test_messages_of_nim_are_decoded() -> None:
    assert decode(nim_message("m", "a", text=b"x"), NIM) == SdsMessage(
        "m", CHANNEL, "nim", START_MS, (HistoryEntry("a"),), content=b"x"
    )
    assert encode(SdsMessage("s", CHANNEL, "nim", START_MS), NIM) == nim_message("s")


def test_own_sync_messages_in_a_history_are_not_missing() -> None:
    ann = Member("ann", SETTINGS)
    ann.receives(nim_message("hello", text=b"hello"))
    own = synced(ann).message_id
    assert ann.receives(nim_message("reply", own, at=70_000, text=b"hi")) == [ReceiveResult.DELIVERED]
    assert not list(ann.channel.missing())


@pytest.mark.parametrize("sync_first", [True, False])
def test_sync_messages_of_others_in_a_history_are_not_missing(sync_first: bool) -> None:
    ann = Member("ann", SETTINGS)
    sync, reply = nim_message("sync"), nim_message("reply", "sync", sender="other", at=1, text=b"hi")
    if sync_first:
        assert ann.receives(sync, reply) == [ReceiveResult.SYNC, ReceiveResult.DELIVERED]
    else:
        assert ann.receives(reply, sync) == [ReceiveResult.WAITING, ReceiveResult.SYNC]
        assert len(ann.effects_of(Missing)) == 1
    assert ann.ids() == ["reply"]
    assert ann.channel.counters().waiting == ann.channel.counters().missing == 0


def test_a_lost_sync_message_that_arrives_is_no_longer_counted_as_lost() -> None:
    ann = Member("ann", replace(SETTINGS, lost_after_ms=1_000))
    ann.receives(nim_message("reply", "sync", at=1, text=b"hi"))
    assert any(isinstance(effect, Lost) for effect in ann.tick(2_000))
    assert ann.channel.counters().lost == 1
    assert ann.receives(nim_message("sync")) == [ReceiveResult.SYNC]
    assert ann.channel.counters().lost == 0


def test_a_message_with_the_id_of_a_sync_message_is_delivered() -> None:
    """A recorded sync message does not block other messages."""
    ann = Member("ann", SETTINGS)
    assert ann.receives(nim_message("id"), nim_message("id", at=1, text=b"text")) == [
        ReceiveResult.SYNC,
        ReceiveResult.DELIVERED,
    ]
    assert ann.receives(nim_message("id", at=2)) == [ReceiveResult.SYNC]
    assert ann.texts() == ["text"]


def test_the_number_of_recorded_sync_messages_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_SDS_SYNC_IDS: a limit per share, so that a flood does not remove other members' ids."""
    monkeypatch.setattr(history, "MAX_SDS_SYNC_IDS", 5)
    ann = Member("ann", SETTINGS)
    ann.receives(nim_message("hello", sender="bob", text=b"hello"), nim_message("bob's", sender="bob", at=1))
    own = synced(ann).message_id
    ann.receives(*(nim_message(f"flood {i:03}", sender=f"nobody {i}", at=i) for i in range(100)))
    with database_of(ann.log).snapshot() as state:
        rows = [key for key, _ in state.scan(b"!", b"~") if b"!sync-ids!" in key]
    assert len(rows) == 7
    assert ann.receives(nim_message("m", "bob's", own, "flood 099", at=80_000, text=b"x")) == [ReceiveResult.DELIVERED]
    assert ann.receives(nim_message("n", "flood 000", at=80_001, text=b"x")) == [ReceiveResult.WAITING]


def test_sync_messages_of_the_specification_are_not_recorded() -> None:
    """Members of this dialect do not log sync messages, so an id that a member lists is that of a message."""
    ann = Member("ann", replace(SETTINGS, dialect=SPEC))
    sync = SdsMessage("sync", CHANNEL, "bob", START_MS)
    reply = SdsMessage("reply", CHANNEL, "bob", START_MS + 1, (HistoryEntry("sync"),), content=b"x")
    assert ann.receives(encode(sync, SPEC), encode(reply, SPEC)) == [ReceiveResult.SYNC, ReceiveResult.WAITING]
