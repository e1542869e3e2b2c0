"""Members that flood a channel: each sender has a share of the space, and the largest share loses first."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from sds_people import SMALL, Member, changed, content

from cablestore import limits
from cablestore.sds import delivery, shares
from cablestore.sds.delivery import ReceiveResult
from cablestore.sds.settings import Backoff

QUIET = replace(SMALL, sync_interval_ms=None, repair=None, resend=Backoff(10**9, 10**9), retrieve=Backoff(10**9, 10**9))
HONEST = 200


def flood(messages: int, named: int, *, sender: str = "eve", at: int = -100_000, tag: str = "") -> list[bytes]:
    """Create messages of a hostile member: first in the log, each after many nonexistent ones."""
    return [
        content(f"{tag}{i:05}", *(f"{tag}{i:05}/{j:04}" for j in range(named)), sender=sender, at=at + i)
        for i in range(messages)
    ]


def chain(sender: str = "ann", messages: int = HONEST) -> list[bytes]:
    """Create messages of an honest member, each after the previous one."""
    names = [f"{sender} {i:03}" for i in range(messages)]
    return [content(names[0], sender=sender)] + [
        content(name, before, sender=sender, at=i + 1) for i, (before, name) in enumerate(itertools.pairwise(names))
    ]


def established(name: str = "ann") -> Member:
    """Return a member that has already received messages of another one."""
    bob = Member("bob", QUIET)
    assert bob.receives(content(f"{name} was here", sender=name, at=-200_000)) == [ReceiveResult.DELIVERED]
    return bob


@pytest.mark.thorough
@pytest.mark.parametrize("turns", ["before", "after", "in turn"])
def test_a_flood_displaces_only_its_own_messages_in_any_order(turns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_SDS_MISSING: a flood displaces only its own messages."""
    assert limits.MAX_SDS_MISSING == 64 * limits.MAX_SDS_UNMET
    most, room = 64, 64 * 64
    monkeypatch.setattr(delivery, "MAX_SDS_UNMET", most)
    monkeypatch.setattr(delivery, "MAX_SDS_MISSING", room)
    bob = established()
    hostile = flood(2 * room // most, most)
    lost, *others = chain()
    if turns == "before":
        order = hostile + others
    elif turns == "after":
        order = others + hostile
    else:
        order = [each for pair in zip(others, hostile, strict=False) for each in pair] + others[len(hostile) :]
    bob.receives(*order)
    assert bob.channel.counters().missing <= room
    assert bob.receives(lost) == [ReceiveResult.DELIVERED]
    assert len([each for each in bob.ids() if each.startswith("ann ")]) == HONEST + 1


def test_unknown_senders_have_one_share_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_SDS_WAITING: names cost nothing, so all strangers together have no more space than one member."""
    monkeypatch.setattr(delivery, "MAX_SDS_WAITING", 600)
    bob = established()
    lost, *others = chain()
    bob.receives(*others)
    for i in range(2_000):
        bob.receives(*flood(1, 1, sender=f"nobody {i}", tag=f"{i}/"))
    assert bob.channel.counters().waiting <= 600
    bob.receives(lost)
    assert len([each for each in bob.ids() if each.startswith("ann ")]) == HONEST + 1


def test_the_number_of_shares_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_SDS_SHARES: a later member is in the strangers' share, where its own messages are dropped first."""
    monkeypatch.setattr(shares, "MAX_SDS_SHARES", 3)
    monkeypatch.setattr(delivery, "MAX_SDS_WAITING", 80)
    bob = established()
    bob.receives(*(content(f"hello {i}", sender=f"sybil {i}", at=-150_000 + i) for i in range(50)))
    assert bob.channel.counters().senders == 3
    _, *others = chain(messages=20)
    bob.receives(*others)
    for i in range(50):
        bob.receives(*flood(10, 1, sender=f"sybil {i}", tag=f"{i}/"))
    bob.receives(content("ann 000", sender="ann"))
    assert len([each for each in bob.ids() if each.startswith("ann ")]) == 21


def test_bytes_are_also_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_SDS_WAITING_SIZE_BYTES: a few large messages are dropped before many small ones."""
    monkeypatch.setattr(delivery, "MAX_SDS_WAITING_SIZE_BYTES", 60_000)
    bob = established()
    lost, *others = chain()
    bob.receives(*others)
    for i in range(50):
        bob.receives(content(f"large {i}", "nothing", sender="eve", at=-1_000 + i, text="x" * 9_000))
    assert bob.channel.counters().waiting_size_bytes <= 60_000
    bob.receives(lost)
    assert len([each for each in bob.ids() if each.startswith("ann ")]) == HONEST + 1


def test_sync_messages_have_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_SDS_MISSING: invented gaps of one member's sync messages leave space for those of another."""
    monkeypatch.setattr(delivery, "MAX_SDS_MISSING", 200)
    bob = established()
    for i in range(40):
        bob.receives(changed(content(f"s{i}", *(f"none {i} {j}" for j in range(20)), sender="eve"), content=None))
    assert bob.channel.counters().missing <= 100
    bob.receives(changed(content("s", *(f"real {j}" for j in range(20)), sender="ann"), content=None))
    missing = {entry.message_id for entry in bob.channel.missing()}
    assert {f"real {j}" for j in range(20)} <= missing
    assert len(missing) == bob.channel.counters().missing <= 100


def test_a_gap_of_a_sync_message_is_kept_once_a_message_depends_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gap that a sync message listed first belongs to the waiting message from then on."""
    monkeypatch.setattr(delivery, "MAX_SDS_MISSING", 100)
    bob = established()
    bob.receives(changed(content("s", "real", sender="eve"), content=None))
    assert bob.receives(content("ann 1", "real", sender="ann", at=5)) == [ReceiveResult.WAITING]
    for i in range(20):
        bob.receives(changed(content(f"s{i}", *(f"none {i} {j}" for j in range(20)), sender="eve"), content=None))
    assert "real" in {entry.message_id for entry in bob.channel.missing()}
    assert bob.receives(content("real", sender="cyd")) == [ReceiveResult.DELIVERED]
    assert bob.ids() == ["ann was here", "real", "ann 1"]


def test_too_many_missing_dependencies_reject_a_message_but_are_requested() -> None:
    """MAX_SDS_UNMET: one message uses a small part of a share; its dependencies are still requested."""
    bob = Member("bob", QUIET)
    names = [f"m{i:04}" for i in range(limits.MAX_SDS_UNMET + 1)]
    late = content("late", *names, at=5_000)
    received = bob.received(late)
    assert received.verdict is ReceiveResult.REFUSED
    assert "too many missing dependencies: the maximum is 256" in (received.reason or "")
    assert len(list(bob.channel.missing())) == limits.MAX_SDS_UNMET
    bob.receives(*(content(name, at=i) for i, name in enumerate(names)))
    assert bob.receives(late) == [ReceiveResult.DELIVERED]


def test_a_dropped_message_that_others_depend_on_is_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_SDS_WAITING: a message dropped from a chain is requested, and the chain is complete after it arrives."""
    monkeypatch.setattr(delivery, "MAX_SDS_WAITING", 8)
    bob = established("cyd")
    eves = [content(f"e{i}", f"gone {i}", sender="eve", at=i) for i in range(7)]
    bob.receives(*eves)
    waiter = content("c", "e6", sender="cyd", at=100)
    assert bob.receives(waiter) == [ReceiveResult.WAITING]
    bob.receives(content("e8", "gone 8", sender="eve", at=-1))
    assert "e6" in {entry.message_id for entry in bob.channel.missing()}
    bob.receives(content("gone 6", sender="eve", at=-50))
    bob.receives(eves[6])
    assert bob.ids()[-2:] == ["e6", "c"]
