"""Attackers beside the participants of a simulated causal log, whose messages reach all participants.

They share one plan: messages that name unknown ones, under one name, under the name of a member, or under a new name
each time; the same beside real messages; sync messages; wrong answers and repeated requests; heads.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from sds_network import CHANNEL, START_MS, Conditions, Participant, Simulation

from cablestore.sds.codec import decode, encode
from cablestore.sds.effects import Send
from cablestore.sds.message import HistoryEntry, SdsMessage

Attack = Callable[["Attacker", int], Iterator[SdsMessage]]


@dataclass
class Attacker:
    """Attacker: its name, its attack, and the latest ids that it received."""

    name: str
    attack: Attack
    named: int
    random: random.Random
    heard: list[str]
    requested: list[str]
    sent: int = 0

    def message(self, time_ms: int, *names: str, sender: str | None = None, text: bytes | None = b"x") -> SdsMessage:
        """Return a message that names others."""
        self.sent += 1
        history = tuple(HistoryEntry(name, None, self.name) for name in names)
        return SdsMessage(f"{self.name}/{self.sent}", CHANNEL, sender or self.name, time_ms, history, content=text)

    def inventions(self) -> list[str]:
        """Return ids of messages that do not exist."""
        return [f"{self.name}/{self.sent}/{number}" for number in range(self.named)]


def as_stranger(attacker: Attacker, now_ms: int) -> Iterator[SdsMessage]:
    yield attacker.message(now_ms, *attacker.inventions())


def as_member(attacker: Attacker, now_ms: int) -> Iterator[SdsMessage]:
    if not attacker.sent:
        yield attacker.message(START_MS)
    yield from as_stranger(attacker, now_ms)


def as_many(attacker: Attacker, now_ms: int) -> Iterator[SdsMessage]:
    for name in attacker.inventions()[:4]:
        yield attacker.message(now_ms, name, sender=f"{attacker.name} {attacker.sent}")


def beside_real_ones(attacker: Attacker, now_ms: int) -> Iterator[SdsMessage]:
    if not attacker.sent:
        yield attacker.message(START_MS)
    yield attacker.message(now_ms + 60_000, *attacker.heard[-8:], *attacker.inventions())


def in_sync_messages(attacker: Attacker, now_ms: int) -> Iterator[SdsMessage]:
    yield attacker.message(now_ms, *attacker.heard[-8:], *attacker.inventions(), text=None)


def with_wrong_answers(attacker: Attacker, now_ms: int) -> Iterator[SdsMessage]:
    """Answer requests without the message, and request messages that others may lack."""
    for message_id in attacker.requested:
        yield replace(attacker.message(now_ms, text=None), message_id=message_id)
    attacker.requested.clear()
    requests = tuple(HistoryEntry(name, None, None) for name in attacker.heard[-32:])
    yield replace(attacker.message(now_ms, text=None), repair_request=requests)


def with_heads(attacker: Attacker, now_ms: int) -> Iterator[SdsMessage]:
    for _ in range(4):
        yield attacker.message(1 + attacker.sent)


ATTACKS: dict[str, Attack] = {
    "strangers that invent dependencies": as_stranger,
    "members that invent dependencies": as_member,
    "a new name for each invention": as_many,
    "inventions beside real dependencies": beside_real_ones,
    "inventions in sync messages": in_sync_messages,
    "wrong answers and repeated requests": with_wrong_answers,
    "heads": with_heads,
}


@dataclass
class Flood:
    """Plan of a flood: attackers share the attacks, and each sends as long as the participants do."""

    attackers: int = 7
    attacks: tuple[str, ...] = tuple(ATTACKS)
    every_ms: int = 10_000
    named: int = 64
    """Invented dependencies of a message."""


class FloodedSimulation(Simulation):
    """Simulation with attackers. All honest logs must become equal, regardless of invented dependencies."""

    def __init__(self, conditions: Conditions, seed: int, flood: Flood) -> None:
        super().__init__(conditions, seed)
        self._flood = flood
        self._hostile: set[bytes] = set()
        rng = random.Random(seed)
        self._attackers = [
            Attacker(f"eve {number}", ATTACKS[flood.attacks[number % len(flood.attacks)]], flood.named, rng, [], [])
            for number in range(flood.attackers)
        ]
        for attacker in self._attackers:
            self.at(START_MS + rng.randrange(flood.every_ms), partial(self.strike, attacker))

    def strike(self, attacker: Attacker) -> None:
        """Send a message of an attacker to all participants."""
        for message in attacker.attack(attacker, self.now_ms):
            data = encode(message, self.conditions.settings.dialect)
            self._hostile.add(data)
            for who in self.participants:
                self.at(self.now_ms + self.conditions.delay_ms[0], partial(self.hear, who, data))
        if self.now_ms < START_MS + self.conditions.seconds * 1_000:
            self.at(self.now_ms + self._flood.every_ms, partial(self.strike, attacker))

    def broadcast(self, sender: Participant, effect: Send) -> None:
        super().broadcast(sender, effect)
        message = decode(effect.data, self.conditions.settings.dialect)
        for attacker in self._attackers:
            attacker.requested += [entry.message_id for entry in message.repair_request]
            if message.content and message.message_id not in attacker.heard:
                attacker.heard.append(message.message_id)

    def may_be_refused(self, data: bytes) -> bool:
        return data in self._hostile

    def check_rest(self, who: Participant) -> None:
        """Allow invented messages to be missing, and messages that depend on them to wait."""
        assert not {entry.message_id for entry in who.running.missing()} & set(who.log_ids())
