"""What a sync or a reconciliation brought, counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cablestore.protocol.keys import NS_PER_MS

if TYPE_CHECKING:
    from cablestore.peers.reconcile_link import Talking


@dataclass(slots=True)
class SyncReport:
    """What a sync brought. Sizes are in bytes as they went over the wire."""

    channels: int = 0
    posts: int = 0
    refused: int = 0
    missing: int = 0
    """Posts that the peer offered and did not deliver."""
    unstored: int = 0
    """Posts that came and that the disk refused."""
    received_size_bytes: int = 0
    sent_size_bytes: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class ReconcileReport:
    """What a reconciliation came to, in one talk or in several. Sizes are of frames, without what encryption adds."""

    talks: int = 0
    posts_sent: int = 0
    posts_received: int = 0
    """New ones, which are stored now."""
    refused: int = 0
    """Posts that came and that no store takes."""
    missing: int = 0
    """Posts that the peer said to have and did not give."""
    unasked: int = 0
    """Posts that came and were not asked for."""
    unstored: int = 0
    """Posts that came and that the disk refused."""
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
    """Of an audit: times in milliseconds, from inclusive to exclusive, in which posts differ that no reconciliation finds."""
    is_by_design: bool = False
    """Somebody made the posts of these times so that their XOR is the same."""
    seconds: float = 0.0

    def add(self, talking: Talking, seconds: float) -> None:
        """Count a talk, whole or not."""
        found = talking.talk.findings
        self.talks += 1
        self.posts_sent += found.posts_sent
        self.posts_received += talking.accepted
        self.refused += talking.refused
        self.missing += talking.talk.missing
        self.unasked += found.unasked
        self.unstored += talking.unstored
        self.here_only += found.here_only
        self.there_only += found.there_only
        self.rounds += found.rounds
        self.sent_comparing_size_bytes += found.sent.comparing
        self.received_comparing_size_bytes += found.received.comparing
        self.sent_posts_size_bytes += found.sent.transferring
        self.received_posts_size_bytes += found.received.transferring
        for (from_ns, _), (until_ns, prefix) in found.differing:
            self.differing_ms.append((from_ns // NS_PER_MS, until_ns // NS_PER_MS + bool(prefix)))
        self.is_by_design |= found.is_by_design
        self.seconds += seconds
