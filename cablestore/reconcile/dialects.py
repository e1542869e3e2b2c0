"""Dialects of WAKU-SYNC with one protocol id: `spec` (the specification), and the dialects of deployed nwaku nodes.

| | `spec` | `nwaku-0.36` | `nwaku-0.37` |
|---|---|---|---|
| header | cluster and shards | the same | pubsub and content topics |
| the first range begins | at zero, so often with a Skip | at the time of its lower bound | the same |
| a lower bound is | the upper bound before it | only the time of that bound | the same |
| varints | minimal | any | any |
| reply to foreign shards or topics | only a header | a frame without bytes | the same |

Two peers match if their clusters and shards are equal; in `nwaku-0.37` if they have topics in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from cablestore.reconcile.payload import Header, Shards, Topics

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SyncDialect:
    """Dialect of WAKU-SYNC.

    `header` is the class of its headers. With `cuts_hashes` bounds can be between two ids of one time, as in the
    specification, but not in nwaku. With `is_strict` only minimal varints are accepted. Ranges shorter than
    `min_fingerprint_ns` are never sent as fingerprints, because deployed nodes split such a range into eight parts by
    time and lose ids.
    With `accepts_skip` an equal item set may be answered with Skip, which the specification does not mention.
    """

    name: str
    header: type[Shards | Topics]
    cuts_hashes: bool
    is_strict: bool
    min_fingerprint_ns: int
    accepts_skip: bool


SPEC: Final = SyncDialect("spec", Shards, cuts_hashes=True, is_strict=True, min_fingerprint_ns=0, accepts_skip=False)
"""The dialect of sync.md, with the count of an item set before its ids."""

NWAKU_036: Final = SyncDialect(
    "nwaku-0.36", Shards, cuts_hashes=False, is_strict=False, min_fingerprint_ns=8, accepts_skip=True
)
"""nwaku 0.35 and 0.36."""

NWAKU_037: Final = replace(NWAKU_036, name="nwaku-0.37", header=Topics)
"""nwaku from 0.37 on, now logos-delivery."""


def agreed(own: Header, other: Header) -> Header | None:
    """Return the common header of two peers with these headers, or None if they have nothing in common."""
    if isinstance(own, Topics) and isinstance(other, Topics):
        pubsub, content = _common(own.pubsub, other.pubsub), _common(own.content, other.content)
        return None if pubsub is None or content is None else Topics(pubsub, content)
    if isinstance(own, Shards) and isinstance(other, Shards):
        matches = own.cluster == other.cluster and set(own.shards) == set(other.shards)
        return own if matches else None
    return None


def _common(own: Sequence[T], other: Sequence[T]) -> tuple[T, ...] | None:
    """Return the common elements, None without any. An empty sequence stands for all elements."""
    if not own or not other:
        return tuple(own or other)
    wanted = set(other)
    return tuple(each for each in own if each in wanted) or None
