"""Members of a causal log, for tests that carry every message explicitly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from cablestore.index.database import Database
from cablestore.sds.bloom import FilterParameters
from cablestore.sds.codec import decode, encode
from cablestore.sds.delivery import Received, ReceiveResult
from cablestore.sds.dialects import SPEC
from cablestore.sds.effects import Deliver, Effect, Send
from cablestore.sds.log import CausalLog
from cablestore.sds.message import HistoryEntry, SdsMessage
from cablestore.sds.settings import Backoff, Settings

START_MS = 1_700_000_000_000
CHANNEL = "room"
SMALL = Settings(filter=FilterParameters(200, 0.001))
PATIENT = replace(
    SMALL, sync_interval_ms=None, repair=None, retrieve=Backoff(10**9, 10**9), resend=Backoff(10**9, 10**9)
)
"""Settings with times so long that nothing becomes due by itself."""

E = TypeVar("E", bound=Effect)


def database_of(log: CausalLog) -> Database:
    return log._database


class Member:
    """Member with a log in memory. `effects` returns new entries of the outbox, and confirms them."""

    def __init__(self, name: str, settings: Settings = SMALL, log: CausalLog | None = None) -> None:
        self.name = name
        self.settings = settings
        self.log = log or CausalLog.in_memory()
        self.channel = self.log.channel(CHANNEL, name, settings)
        self.now_ms = START_MS

    def reopened(self) -> Member:
        """Return the same member after its process was killed: only the database is kept."""
        again = Member(self.name, self.settings, CausalLog.in_memory(database_of(self.log)))
        again.now_ms = self.now_ms
        return again

    def effects(self) -> list[Effect]:
        found = self.channel.outbox()
        if found:
            self.channel.confirm(found[-1][0])
        return [effect for _, effect in found]

    def effects_of(self, kind: type[E]) -> list[E]:
        return [effect for effect in self.effects() if isinstance(effect, kind)]

    def says(self, text: str, message_id: str | None = None, hint: bytes | None = None) -> bytes:
        """Send, and return the bytes. The rest of the outbox is discarded."""
        self.channel.send(text.encode(), self.now_ms, message_id=message_id, retrieval_hint=hint)
        return self.effects_of(Send)[-1].data

    def receives(self, *data: bytes) -> list[ReceiveResult]:
        return [self.received(each).verdict for each in data]

    def received(self, data: bytes) -> Received:
        return self.channel.receive(data, self.now_ms)

    def tick(self, after_ms: int = 0, chance: float = 0.0) -> list[Effect]:
        """Advance the time, and return the due effects."""
        self.now_ms += after_ms
        self.channel.tick(self.now_ms, lambda: chance)
        return self.effects()

    def texts(self) -> list[str]:
        return [(message.content or b"").decode() for message in self.channel.log()]

    def ids(self) -> list[str]:
        return [message.message_id for message in self.channel.log()]


def delivered(effects: Iterable[Effect]) -> list[str]:
    return [effect.message.message_id for effect in effects if isinstance(effect, Deliver)]


def sends(effects: Iterable[Effect]) -> list[SdsMessage]:
    return [decode(effect.data, SPEC) for effect in effects if isinstance(effect, Send)]


def opened(data: bytes) -> SdsMessage:
    return decode(data, SPEC)


def changed(data: bytes, **changes: object) -> bytes:
    """Return the same message with other fields."""
    return encode(replace(decode(data, SPEC), **changes), SPEC)  # type: ignore[arg-type]  # names and values match


def content(message_id: str, *after: str, sender: str = "eve", at: int = 0, text: str = "text") -> bytes:
    """Return a message `at` milliseconds after the start, with references to others."""
    history = tuple(HistoryEntry(name, None, sender) for name in after)
    return encode(
        SdsMessage(message_id, CHANNEL, sender, START_MS + at, causal_history=history, content=text.encode()), SPEC
    )


def filter_of(*ids: str) -> bytes:
    """Return the filter, as sent, of a member that has these messages."""
    member = Member("filter", PATIENT)
    for message_id in ids:
        member.receives(content(message_id))
    return opened(member.says("x")).bloom_filter or b""
