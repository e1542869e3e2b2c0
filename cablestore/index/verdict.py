"""What became of a post that was offered: one of a fixed set of verdicts, never an exception."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class Verdict(Enum):
    """The outcome of offering a post, or of asking for one to be discarded."""

    ACCEPTED = "accepted"
    """Stored and indexed."""
    DUPLICATE = "duplicate"
    """Held already."""
    DELETED = "deleted"
    """Its author deleted it; its bytes are not stored."""
    MALFORMED = "malformed"
    """Not a post of this store's dialect."""
    UNKNOWN_TYPE = "unknown type"
    """A post of a type that the dialect does not have (wire.md 5.1.4)."""
    BAD_SIGNATURE = "bad signature"
    """Not signed by its author."""
    TOO_FAR_AHEAD = "too far in the future"
    """Dated a week or more ahead of now (wire.md 5.1.4)."""
    LOCAL_ONLY = "local-only"
    """Somebody else's private post, which should never have left their store (moderation.md 4.5)."""
    DISCARDED = "discarded"
    """Removed without a tombstone."""
    KEPT = "kept"
    """A post/delete, which is never discarded: it is the proof of its tombstones (wire.md 5.1.5)."""
    UNKNOWN = "unknown"
    """Not held."""


LIES: Final = frozenset({Verdict.MALFORMED, Verdict.BAD_SIGNATURE})
"""What becomes of posts that no honest peer passes on: it would have verified them."""


class Outcome(NamedTuple):
    """What became of one post. `reason` says more where the verdict alone does not."""

    hash: bytes
    verdict: Verdict
    reason: str = ""
