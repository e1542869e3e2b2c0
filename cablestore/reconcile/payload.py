"""Payloads of a reconciliation: a header, and ranges with what the sender has in them (WAKU-SYNC, "RangesData").

Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from cablestore.reconcile.ids import Range, SyncID


class Shards(NamedTuple):
    """Header of the specification and of nwaku up to 0.36: a cluster, and those of its shards that the sender keeps."""

    cluster: int = 0
    shards: tuple[int, ...] = ()


class Topics(NamedTuple):
    """Header of nwaku from 0.37 on: the pubsub topics and content topics that the sender keeps.

    An empty tuple means all.
    """

    pubsub: tuple[str, ...] = ()
    content: tuple[str, ...] = ()


Header = Shards | Topics


class ItemSet(NamedTuple):
    """All ids that the sender has in a range. If `reconciled`, it knows the receiver's and expects no answer."""

    elements: list[SyncID]
    reconciled: bool


Content = ItemSet | bytes | None
"""All ids of a range; or their XOR, 32 bytes; or None: nothing is left to say about the range (Skip)."""


class PayloadPart(NamedTuple):
    """Range of a payload with what the sender has in it."""

    range: Range
    content: Content


class Payload(NamedTuple):
    """Message of a reconciliation. `header` is None in the shortest payload, which has no ranges."""

    header: Header | None
    parts: list[PayloadPart]

    @property
    def is_final(self) -> bool:
        """Whether nothing is left to answer."""
        return all(part.content is None for part in self.parts)
