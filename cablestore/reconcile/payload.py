"""What is said in a reconciliation: ranges with what one side has in them, under a header (WAKU-SYNC, "RangesData"). Pure."""

from __future__ import annotations

from typing import NamedTuple

from cablestore.reconcile.ids import Range, SyncID


class Shards(NamedTuple):
    """The header of the specification, and of nwaku to 0.36: a cluster, and the shards of it that the sender keeps."""

    cluster: int = 0
    shards: tuple[int, ...] = ()


class Topics(NamedTuple):
    """The header of nwaku from 0.37 on: pubsub topics and content topics that the sender keeps. None of a kind means all."""

    pubsub: tuple[str, ...] = ()
    content: tuple[str, ...] = ()


Header = Shards | Topics


class ItemSet(NamedTuple):
    """All ids that the sender has in a range, and whether it knows the receiver's, so that it wants no answer."""

    elements: list[SyncID]
    reconciled: bool


Content = ItemSet | bytes | None
"""All ids of a range; or their XOR, 32 bytes; or None, the range is done with (Skip)."""


class PayloadPart(NamedTuple):
    """One range and what the sender has in it."""

    range: Range
    content: Content


class Payload(NamedTuple):
    """One message. `header` is None in the shortest payload of all, which has no ranges."""

    header: Header | None
    parts: list[PayloadPart]

    @property
    def is_final(self) -> bool:
        """Whether it leaves nothing to answer."""
        return all(part.content is None for part in self.parts)
