"""Counts of what a sync or a reconciliation brought."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class SyncReport:
    """Counts of a sync. Sizes are in bytes as they went over the wire."""

    channels: int = 0
    posts: int = 0
    refused: int = 0
    early: int = 0
    """Those of the refused posts that are dated too far ahead."""
    missing: int = 0
    """Posts that the peer offered and did not deliver."""
    unstored: int = 0
    """Posts that came and could not be stored."""
    received_size_bytes: int = 0
    sent_size_bytes: int = 0
    seconds: float = 0.0

    def add(self, other: SyncReport) -> None:
        """Add the counts of another part of the same sync."""
        self.channels += other.channels
        self.posts += other.posts
        self.refused += other.refused
        self.missing += other.missing
        self.unstored += other.unstored


@dataclass(slots=True)
class ReconcileReport:
    """Counts of a reconciliation, in one conversation or in several.

    Sizes are of frames, without what encryption adds.
    """

    talks: int = 0
    posts_sent: int = 0
    posts_received: int = 0
    """New ones, which are stored now."""
    refused: int = 0
    """Posts that came and that no store takes."""
    missing: int = 0
    """Posts that the peer said it has and did not give."""
    unasked: int = 0
    """Posts that came and were not asked for."""
    unstored: int = 0
    """Posts that came and could not be stored."""
    here_only: int = 0
    there_only: int = 0
    """Differences that were found."""
    rounds: int = 0
    """Payloads of the peer that were compared."""
    sent_comparing_size_bytes: int = 0
    received_comparing_size_bytes: int = 0
    sent_posts_size_bytes: int = 0
    received_posts_size_bytes: int = 0
    differing_ms: list[tuple[int, int]] = field(default_factory=list)
    """Times that an audit found, in milliseconds, from inclusive to exclusive: posts differ that no reconciliation
    finds."""
    is_by_design: bool = False
    """Somebody made the posts of these times so that their XOR is the same."""
    seconds: float = 0.0

    @property
    def moved(self) -> int:
        """How many posts moved, both ways."""
        return self.posts_sent + self.posts_received
