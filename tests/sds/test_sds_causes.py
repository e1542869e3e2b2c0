"""Floods do not delay repairs: limited resources first serve senders that listed the fewest nonexistent messages."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from sds_people import SMALL, START_MS, Member, changed, content, database_of, opened, sends

from cablestore import limits
from cablestore.index.packing import pack, unpack
from cablestore.sds import causes, delivery, history, missing, repair_answers
from cablestore.sds.delivery import ReceiveResult
from cablestore.sds.effects import Effect, Reason, RepairRequested, Retrieve, Send
from cablestore.sds.log import CausalLog
from cablestore.sds.message import HistoryEntry
from cablestore.sds.records import gap_of
from cablestore.sds.repair import RepairParameters
from cablestore.sds.settings import Backoff

MOST_DELAY = 2
"""Maximum delay of an honest repair beside a flood, as a multiple of that without a flood."""
ROOM = replace(SMALL, repair=RepairParameters(t_min_ms=3_000, t_max_ms=12_000), repair_backoff=Backoff(12_000, 360_000), sync_interval_ms=3_000, retrieve=Backoff(10**9, 10**9))  # fmt: skip
"""A tenth of the default times."""
QUIET = replace(SMALL, sync_interval_ms=None, resend=Backoff(10**9, 10**9), retrieve=Backoff(10**9, 10**9))
NAMES = 16


def everything(member: Member) -> list[Effect]:
    """Return all new effects of a member, as an application reads them."""
    found: list[Effect] = []
    while part := member.effects():
        found += part
    return found


def asked(member: Member) -> list[str]:
    """Return the requests of a member with its next message."""
    everything(member)
    member.channel.send(b"x", member.now_ms)
    requests = [effect for effect in everything(member) if isinstance(effect, RepairRequested)]
    return [entry.message_id for effect in requests for entry in effect.entries]


class Room:
    """Three members. The second message of ann does not reach bob; all others reach all members, including repairs."""

    def __init__(self) -> None:
        self.members = {name: Member(name, ROOM) for name in ("ann", "bob", "cyd")}
        self.now_ms = START_MS
        self.random = random.Random(3)
        self.lost: str | None = None
        self.asked: list[str] = []

    def say(self, name: str, *, is_lost: bool = False) -> str:
        member = self.members[name]
        message_id = member.channel.send(b"%d" % self.now_ms, self.now_ms).message_id
        self.lost = message_id if is_lost else self.lost
        self.carry(first_not_to="bob" if is_lost else None)
        return message_id

    def deliver(self, data: Iterable[bytes]) -> None:
        """Deliver messages of an attacker to all members."""
        each = list(data)
        for member in self.members.values():
            member.channel.receive_all(each, self.now_ms)

    def carry(self, first_not_to: str | None = None) -> None:
        for name, member in self.members.items():
            for effect in everything(member):
                if name == "bob" and isinstance(effect, RepairRequested):
                    self.asked += [entry.message_id for entry in effect.entries]
                if isinstance(effect, Send):
                    for other in self.members.keys() - {name}:
                        if not (other == first_not_to and effect.reason is Reason.NEW):
                            self.members[other].channel.receive(effect.data, self.now_ms)

    def second(self) -> None:
        self.now_ms += 1_000
        for member in self.members.values():
            member.channel.tick(self.now_ms, self.random.random)
        self.carry()

    def repaired_after_s(self, most_s: int) -> int:
        """Advance time, with a message of cyd every ten seconds, until bob has the lost message."""
        assert self.lost is not None
        for second in range(most_s):
            if self.members["bob"].channel.message(self.lost) is not None:
                return second
            if second % 10 == 0:
                self.say("cyd")
            self.second()
        return most_s


def names(number: int, tag: str) -> list[str]:
    return [f"no {tag}/{each:03}" for each in range(number)]


def one_stranger(room: Room, lost: str) -> list[bytes]:
    return [content(f"eve {i}", *names(128, f"{i}"), at=i) for i in range(8)]


def fifty_strangers(room: Room, lost: str) -> list[bytes]:
    return [content(f"eve {i}", *names(NAMES, f"{i}"), sender=f"eve {i}", at=i) for i in range(50)]


def fifty_members(room: Room, lost: str) -> list[bytes]:
    hello = [content(f"hello {i}", sender=f"eve {i}", at=-5_000) for i in range(50)]
    return hello + fifty_strangers(room, lost)


def a_new_name_for_each(room: Room, lost: str) -> list[bytes]:
    return [content(f"eve {i}", f"no {i}", sender=f"eve {i}", at=i) for i in range(300)]


def beside_the_real_one(room: Room, lost: str) -> list[bytes]:
    return [content(f"eve {i}", lost, *names(NAMES, f"{i}"), sender=f"eve {i}", at=90_000 + i) for i in range(50)]


def in_the_name_of_a_member(room: Room, lost: str) -> list[bytes]:
    return [content(f"eve {i}", *names(128, f"{i}"), sender="ann", at=i) for i in range(8)]


def in_sync_messages(room: Room, lost: str) -> list[bytes]:
    return [changed(each, content=None) for each in one_stranger(room, lost)]


FLOODS = [one_stranger, fifty_strangers, fifty_members, a_new_name_for_each, beside_the_real_one, in_the_name_of_a_member, in_sync_messages]  # fmt: skip


def repaired(flood: Callable[[Room, str], list[bytes]] | None, *, is_known: bool, is_first: bool, most_s: int) -> int:
    """Return the number of seconds until bob has the lost message."""
    room = Room()
    if is_known:
        for name in room.members:
            room.say(name)
    if flood is not None and is_first:
        room.deliver(flood(room, "unknown"))
        for _ in range(30):
            room.second()
    lost = room.say("ann", is_lost=True)
    if flood is not None and not is_first:
        room.say("cyd")
        room.deliver(flood(room, lost))
    return room.repaired_after_s(most_s)


@pytest.mark.parametrize(("is_known", "is_first"), [(False, True), (True, False)], ids=["flood first", "loss first"])
@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.__name__)
def test_a_flood_does_not_delay_a_repair(
    flood: Callable[[Room, str], list[bytes]], is_known: bool, is_first: bool
) -> None:
    calm_s = repaired(None, is_known=is_known, is_first=is_first, most_s=100)
    assert 0 < calm_s < 100
    most_s = MOST_DELAY * calm_s + 1
    assert repaired(flood, is_known=is_known, is_first=is_first, most_s=most_s) < most_s


def test_a_second_flood_has_the_lowest_priority_from_its_start() -> None:
    """Unanswered requests stay in the account of a member whose gaps were declared lost."""
    bob = Member("bob", replace(QUIET, lost_after_ms=600_000))
    bob.receives(content("e", sender="eve"), content("a", sender="ann"))
    bob.receives(content("e2", *names(20, "first"), sender="eve", at=1))
    for _ in range(30):
        bob.now_ms += 10_000
        asked(bob)
    bob.tick(600_000)
    assert bob.channel.counters().missing == 0
    bob.receives(
        content("e3", *names(40, "second"), sender="eve", at=2),
        content("a2", *(f"real {i}" for i in range(6)), sender="ann", at=3),
    )
    bob.now_ms += 120_000
    assert [each.split()[0] for each in asked(bob)[:2]] == ["real", "real"]


def test_requests_of_another_member_delay_ours_only_once() -> None:
    """A member that repeats our request only to us cannot prevent it."""
    bob = Member("bob", QUIET)
    bob.receives(content("b", "lost", sender="ann", at=1))
    requests = 0
    for i in range(60):
        bob.receives(changed(content(f"ask {i}", sender="eve"), content=None, repair_request=(HistoryEntry("lost"),)))
        bob.now_ms += 10_000
        requests += len(asked(bob))
    assert requests > 0


@pytest.mark.parametrize(
    "wrong",
    [content("m", sender="ann", text="wrong"), content("m", sender="eve"), changed(content("m", sender="ann"), content=None)],
    ids=["content", "sender", "sync message"],
)  # fmt: skip
def test_a_wrong_answer_does_not_cancel_ours(wrong: bytes) -> None:
    bob = Member("bob", QUIET)
    right = content("m", sender="ann")
    bob.receives(right, changed(content("ask", sender="cyd"), content=None, repair_request=(HistoryEntry("m"),)))
    bob.receives(wrong)
    assert bob.channel.counters().answers == 1
    assert [message.message_id for message in sends(bob.tick(120_000))] == ["m"]
    bob.receives(changed(content("ask 2", sender="cyd"), content=None, repair_request=(HistoryEntry("m"),)))
    bob.receives(right)
    assert bob.channel.counters().answers == 0


def test_space_for_answers_is_shared_by_all_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_SDS_ANSWERS: a member that requests everything leaves space for others, even under many names."""
    monkeypatch.setattr(repair_answers, "MAX_SDS_ANSWERS", 16)
    bob = Member("bob", QUIET)
    bob.receives(*(content(f"m{i}", sender="ann", at=i) for i in range(60)))
    answers = []
    for i in range(50):
        ask = tuple(HistoryEntry(f"m{each}") for each in range(i, i + 2))
        bob.receives(changed(content(f"ask {i}", sender=f"eve {i}"), content=None, repair_request=ask))
        answers.append(bob.channel.counters().answers)
        if i > 40 and answers[-1] == 16:
            break
    assert max(answers) == answers[-1] == 16
    bob.receives(changed(content("ask", sender="ann"), content=None, repair_request=(HistoryEntry("m55"),)))
    assert bob.channel.counters().answers <= 16
    bob.effects()
    assert "m55" in [message.message_id for message in sends(bob.tick(120_000))]


def test_retrievals_are_shared_by_all_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_SDS_TIMERS: the application gets the request for an honest gap in time."""
    monkeypatch.setattr(missing, "MAX_SDS_TIMERS", 8)
    bob = Member("bob", replace(QUIET, retrieve=Backoff(1_000, 60_000)))
    bob.receives(content("a", sender="ann"), *(content(f"e{i}", *names(64, f"{i}"), at=i) for i in range(4)))
    bob.now_ms += 10
    bob.receives(content("a2", "lost", sender="ann", at=99))
    bob.effects()
    requested = [effect.entry.message_id for effect in bob.tick(1_000) if isinstance(effect, Retrieve)]
    assert len(requested) == 8
    assert "lost" in requested


def sent(member: Member) -> bytes:
    """Return the bytes of a new message."""
    everything(member)
    member.channel.send(b"x", member.now_ms)
    return [effect.data for effect in everything(member) if isinstance(effect, Send)][-1]


def test_histories_list_unlisted_messages_in_turn() -> None:
    """Unlisted messages dated before all others formerly displaced honest ones from all histories."""
    bob = Member("bob", replace(QUIET, sync_interval_ms=1_000))
    bob.receives(*(content(f"e{i:04}", sender="eve", at=i - 10_000) for i in range(2 * history.MAX_HEADS_READ)))
    bob.receives(content("a", sender="ann", at=1), *(content(f"e{i}", sender="eve", at=i) for i in range(2, 9)))
    assert "a" in [entry.message_id for entry in opened(sent(bob)).causal_history]
    assert "a" not in [entry.message_id for entry in opened(sent(bob)).causal_history]


def test_sync_messages_list_unlisted_messages_in_turn() -> None:
    bob = Member("bob", replace(QUIET, sync_interval_ms=1_000))
    bob.receives(*(content(f"e{i:04}", sender="eve", at=i - 10_000) for i in range(2 * history.MAX_HEADS_READ)))
    bob.receives(content("a", sender="ann", at=1), *(content(f"e{i}", sender="eve", at=i) for i in range(2, 9)))
    everything(bob)
    bob.tick()
    [sync] = sends(bob.tick(1_001))
    assert "a" in [entry.message_id for entry in sync.causal_history]


def test_the_causes_of_a_gap_are_limited_and_keep_the_best_senders() -> None:
    """MAX_SDS_CAUSES: senders that listed a message first do not exclude an honest one."""
    bob = Member("bob", QUIET)
    bob.receives(content("a", sender="ann"))
    bob.receives(*(content(f"e{i}", "lost", f"no {i}", sender=f"eve {i}", at=10 + i) for i in range(50)))
    bob.receives(content("a2", "lost", sender="ann", at=99))
    with bob.channel._reading() as transaction:
        state = transaction.state
        gap = gap_of(state.missing.take(b"lost"))
        assert len(gap.causes) == limits.MAX_SDS_CAUSES
        assert "ann" in gap.causes
        assert causes.account_of(state, "ann") == (1, 0)


@pytest.mark.parametrize("number", [1, 3])
def test_a_gap_has_the_priority_of_a_member_that_depends_on_it_indirectly(number: int) -> None:
    """The gap is below waiting messages of a stranger, so the member does not list it itself.

    The stranger also listed many other missing messages, so that without the member all others are served first.
    """
    bob = Member("bob", QUIET)
    bob.receives(content("a", sender="ann"))
    bob.receives(*(content(f"e{i}", f"no {i}", sender=f"eve {i}", at=10 + i) for i in range(40)))
    below = ["lost", *(f"d{i}" for i in range(number))]
    bob.receives(
        content("many", *(f"none {i}" for i in range(40)), sender="dan", at=49),
        *(content(below[i + 1], below[i], sender="dan", at=50 + i) for i in range(number)),
        content("a2", below[-1], sender="ann", at=60),
    )
    bob.now_ms += 120_000
    assert "lost" in asked(bob)


def charged_gaps(bob: Member, *listed: str) -> int:
    """Return the number of gaps of which ann becomes a cause when she lists these waiting messages."""
    bob.receives(content("a2", *listed, sender="ann", at=99))
    with bob.channel._reading() as transaction:
        return causes.account_of(transaction.state, "ann").gaps


@pytest.mark.parametrize("number", [16, 17])
def test_a_member_becomes_the_cause_of_a_limited_number_of_indirect_gaps(number: int) -> None:
    """MAX_SDS_CAUSES, for each message that lists waiting messages of strangers."""
    bob = Member("bob", QUIET)
    bob.receives(*(content(f"d{i}", f"none {i}", sender="dan", at=i) for i in range(number)))
    assert charged_gaps(bob, *(f"d{i}" for i in range(number))) == limits.MAX_SDS_CAUSES == 16


@pytest.mark.parametrize(
    ("members", "gaps", "charged"),
    [((), 1, 1), (("dan",), 17, 0), (("ann", "dan"), 16, 0), (("ann", "dan"), 17, 17)],
    ids=["strangers", "of a member", "of an equal", "of a much dearer member"],
)
def test_a_sender_becomes_a_cause_of_indirect_gaps_if_it_is_served_much_earlier(
    members: tuple[str, ...], gaps: int, charged: int
) -> None:
    """Ann lists a waiting message of dan. If both are strangers, she becomes a cause in any case."""
    bob = Member("bob", QUIET)
    bob.receives(*(content(f"of {name}", sender=name) for name in members))
    bob.receives(content("d", *(f"none {i}" for i in range(gaps)), sender="dan", at=1))
    assert charged_gaps(bob, "d") == charged


@pytest.mark.parametrize(("below", "charged"), [(3, 1), (4, 0)])
def test_a_limited_number_of_indirect_dependencies_is_read(
    monkeypatch: pytest.MonkeyPatch, below: int, charged: int
) -> None:
    """MAX_SDS_HISTORY: the gap is below a chain of waiting messages."""
    monkeypatch.setattr(delivery, "MAX_SDS_HISTORY", 4)
    bob = Member("bob", QUIET)
    bob.receives(content("d0", "lost", sender="dan"))
    bob.receives(*(content(f"d{i}", f"d{i - 1}", sender="dan", at=i) for i in range(1, below + 1)))
    assert charged_gaps(bob, f"d{below}") == charged


def test_a_log_of_an_older_version_shares_requests_by_sender() -> None:
    """Versions up to 0.12 stored no causes: they are computed when the channel is opened."""
    bob = Member("bob", QUIET)
    bob.receives(content("a", sender="ann"), *one_stranger(Room(), ""))
    bob.receives(
        content("a2", "lost", sender="ann", at=99), changed(content("s", "listed", sender="ann"), content=None)
    )
    bob.receives(changed(content("ask", sender="ann"), content=None, repair_request=(HistoryEntry("a"),)))
    with bob.log.rows() as rows:
        kept = {key: older(key, row) for key, row in rows}
    database = database_of(bob.log)
    database.write(kept, sync=False)
    again = Member("bob", QUIET, CausalLog.in_memory(database))
    again.now_ms = bob.now_ms + 120_000
    assert {"lost", "listed"} & set(asked(again))
    assert [message.message_id for message in sends(again.tick())] == ["a"]
    assert again.receives(content("lost", sender="ann")) == [ReceiveResult.DELIVERED]


def older(key: bytes, row: bytes) -> bytes | None:
    """Return a row as version 0.12.4 wrote it, None for one that it did not write."""
    table = key.split(b"!")[2]
    if table in {b"causes", b"ranks", b"requests", b"support", b"retrievals", b"loose-of"}:
        return None
    if table == b"missing":
        return pack(unpack(row)[:9])
    if table == b"state":
        return pack(unpack(row)[:-2])
    return row[:8] if table == b"answers" else row
