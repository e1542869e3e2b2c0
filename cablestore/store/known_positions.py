"""Cache of the order of a channel's texts (`store.message_order`), valid until a write changes that order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cablestore import limits
from cablestore.index import arrival_log
from cablestore.index.arrival_log import EventKind
from cablestore.index.reader import Reader
from cablestore.protocol.body import DELETE, TEXT
from cablestore.protocol.keys import time_of
from cablestore.store.frontier import Frontier
from cablestore.views import links, messages


class ReadingPosition(NamedTuple):
    """Position of a text in its channel. Positions sort in reading order."""

    effective_ms: int
    steps: int
    sort_time: bytes


@dataclass(frozen=True, slots=True)
class KnownPositions:
    """Cached positions for one state of a store, and for later states that only append to the end of channels.

    They are invalid in other states. For example, a text is not moved before the text that it links to arrives, or
    after that text is deleted.
    """

    state: tuple[str, int] = "", 0
    """The database, and the number of the next entry of its arrival log."""
    latest: dict[str, int] = field(default_factory=dict)
    """The latest claimed time of each channel with cached positions."""
    moved: dict[bytes, int] = field(default_factory=dict)
    """Effective times of moved posts."""
    targets: set[tuple[str, int]] = field(default_factory=set)
    """(channel, effective time) of each moved post."""
    groups: dict[tuple[str, int], list[tuple[ReadingPosition, bytes]]] = field(default_factory=dict)
    """Texts in order, for each channel and effective time that several texts share."""
    alone: set[bytes] = field(default_factory=set)
    """Hashes of texts that do not share their effective time with another text."""
    frontiers: dict[str, Frontier] = field(default_factory=dict)
    """The frontier of each channel that was read from its newest text down: see `store.frontier`."""
    risen: dict[str, bytes] = field(default_factory=dict)
    """For each channel that was read from its oldest text up: the sort time of the last text that was read."""

    def of(self, reader: Reader) -> KnownPositions:
        """Return the cache for a reader's state. It is empty if this cache is invalid in that state, or too large."""
        state = reader.generation, arrival_log.next_sequence(reader)
        if len(self.moved) + len(self.groups) + len(self.alone) > limits.MAX_KNOWN_POSITIONS:
            return KnownPositions(state)
        if state == self.state:
            return self
        latest = self._latest_after(reader, state)
        if latest is None:
            return KnownPositions(state)
        return replace(self, state=state, latest=latest)  # shares the tables, which are valid in both states

    def note_latest(self, reader: Reader, channel: str) -> None:
        """Record the latest claimed time of a channel, if it is not in `latest`. Call it before caching positions."""
        if channel not in self.latest:
            row = next(messages.texts(reader, channel, newest_first=True, at_once=1), None)
            self.latest[channel] = -1 if row is None else time_of(row[0])

    def _latest_after(self, reader: Reader, state: tuple[str, int]) -> dict[str, int] | None:
        """Return `latest` for the later state `state`. None if the writes since did more than append to channels.

        Texts that were appended to channels in `latest` are added to `alone`.
        """
        generation, next_sequence = state
        count = next_sequence - self.state[1]
        if generation != self.state[0] or not 0 < count <= limits.MAX_ARRIVALS_FOLLOWED:
            return None
        latest, alone = dict(self.latest), set[bytes]()
        for entry in arrival_log.entries(reader, self.state[1] - 1):
            if entry.kind is EventKind.LOCAL:
                continue
            post = reader.post(entry.hash) if entry.kind is EventKind.ACCEPTED else None
            if post is None or post.type == DELETE or any(links.linking(reader, post.hash)):
                return None
            channel = post.channel or ""
            if post.type == TEXT and channel in latest:
                if post.timestamp_ms <= latest[channel]:
                    return None
                latest[channel] = post.timestamp_ms
                alone.add(post.hash)  # it is later than all texts, and no post links to it
        self.alone.update(alone)
        return latest

    def move(self, channel: str, digest: bytes, effective_ms: int) -> None:
        """Record the effective time of a moved post."""
        self.targets.add((channel, effective_ms))
        self.moved[digest] = effective_ms


class PositionCache:
    """Cache of the latest state that was read. A store shares it with its snapshots."""

    def __init__(self) -> None:
        self._known = KnownPositions()

    def of(self, reader: Reader) -> KnownPositions:
        """Return the cache for a reader's state, and keep it if the state is newer."""
        found = self._known.of(reader)
        if found.state[0] != self._known.state[0] or found.state[1] > self._known.state[1]:
            self._known = found
        return found
