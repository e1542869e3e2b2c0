"""Payloads of a reconciliation: a header, and ranges with the sender's content (WAKU-SYNC, "RangesData")."""

from __future__ import annotations

from typing import NamedTuple

from cablestore.reconcile.ids import Range, SyncID


class Shards(NamedTuple):
    """Header of the specification and of nwaku up to 0.36: a cluster, and the shards in it that the sender keeps."""

    cluster: int = 0
    shards: tuple[int, ...] = ()


class Topics(NamedTuple):
    """Header of nwaku from 0.37 on: the pubsub topics and content topics that the sender keeps.

    An empty tuple stands for all.
    """

    pubsub: tuple[str, ...] = ()
    content: tuple[str, ...] = ()


Header = Shards | Topics


class ItemSet(NamedTuple):
    """All ids of the sender in a range. If `reconciled`, the sender knows the receiver's ids and expects no answer."""

    elements: list[SyncID]
    reconciled: bool


Content = ItemSet | bytes | None
"""All ids of a range; or their XOR, 32 bytes; or None: the range is finished (Skip)."""


class PayloadPart(NamedTuple):
    """A range of a payload with the sender's content in it."""

    range: Range
    content: Content


class Payload(NamedTuple):
    """Message of a reconciliation. `header` is None in the shortest payload, which does not contain ranges."""

    header: Header | None
    parts: list[PayloadPart]

    @property
    def is_final(self) -> bool:
        """True if no part needs an answer."""
        return all(part.content is None for part in self.parts)
