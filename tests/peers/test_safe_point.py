"""Where a pass over a channel begins if an earlier pass was complete, and which changes a live request receives."""

from __future__ import annotations

import pytest
from peering import memory
from people import ANN, START_MS

from cablestore import LEGACY, limits
from cablestore.peers.history import safe_point_ms
from cablestore.peers.live_changes import LiveChange, Subject, concerns
from cablestore.protocol.message import ModerationRequest, Request, StateRequest, TimeRangeRequest

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


@pytest.mark.parametrize(
    ("posts", "gap_ms", "expected_ms"),
    [
        (0, MINUTE_MS, 0),
        (15, MINUTE_MS, 0),  # all of a small channel are listed again
        (16, MINUTE_MS, 16 * MINUTE_MS - HOUR_MS),
        (16, 10 * MINUTE_MS, 0),
        (17, 10 * MINUTE_MS, 10 * MINUTE_MS),
        (19, 1, 19 - HOUR_MS),
        (20, 1, 0),
        (21, 1, 1),
    ],
)
def test_a_pass_begins_an_hour_or_some_posts_before_the_last_one(
    posts: int, gap_ms: int, expected_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MAX_OVERLAP_POSTS."""
    monkeypatch.setattr(limits, "MAX_OVERLAP_POSTS", 20)
    texts = [ANN.text("default", f"{number}", at=START_MS + number * gap_ms) for number in range(posts)]
    known_ms = START_MS + posts * gap_ms
    later = [ANN.text("default", "later", at=known_ms), ANN.text("other", "x", at=known_ms - 1)]
    with memory("a", posts=[*texts, *later]) as store, store.snapshot() as state:
        found_ms = safe_point_ms(state.reader, "default", known_ms)
    assert found_ms == (0 if posts < 16 else START_MS + expected_ms)


@pytest.mark.parametrize(
    ("subject", "request_", "expected"),
    [
        (Subject.CHAT, TimeRangeRequest(b"", "default", 100, 0, 0), True),
        (Subject.CHAT, TimeRangeRequest(b"", "default", 101, 0, 0), False),
        (Subject.CHAT, StateRequest(b"", "default", 1), False),
        (Subject.STATE, StateRequest(b"", "default", 1), True),
        (Subject.STATE, TimeRangeRequest(b"", "default", 0, 0, 0), False),
        (Subject.MODERATION, ModerationRequest(b"", ("default",), 1, 0), False),  # its post is not known
        (Subject.CONSENT, ModerationRequest(b"", ("default",), 1, 0), False),
        (Subject.PRIVATE, TimeRangeRequest(b"", "default", 0, 0, 0), False),
    ],
)
def test_a_live_request_receives_the_changes_of_its_kind(subject: Subject, request_: Request, expected: bool) -> None:
    assert concerns(request_, LiveChange(subject, "default", bytes(32), 100), LEGACY) is expected
