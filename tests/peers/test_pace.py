"""The pace of a peer that sends a message byte by byte: which checks count as slow."""

from __future__ import annotations

from cablestore import limits
from cablestore.peers.pace import MessagePace


def test_checks_with_few_new_bytes_of_one_message_are_slow() -> None:
    """MIN_MESSAGE_BYTES_PER_S. Silence counts only within the first message."""
    least = limits.MIN_MESSAGE_BYTES_PER_S
    pace, size_bytes = MessagePace(500, 10.0), 500
    for now_s, new_bytes, messages, expected in (
        (10.9, 1, 0, 0),  # too early: these bytes are counted by the next check
        (11.0, least - 1, 0, 0),
        (12.0, 0, 0, 0),  # nothing of the message has arrived
        (13.0, 1, 0, 1),
        (13.9, 1, 0, 1),
        (14.0, 0, 0, 2),
        (15.0, 0, 0, 3),
        (16.0, least - 1, 0, 4),
        (17.0, least, 0, 0),
        (18.0, 1, 0, 1),
        (19.0, 1, 1, 0),  # the message is complete
        (20.0, 1, 1, 1),
        (21.0, 0, 1, 1),
        (22.0, 1, 1, 2),
        (23.0, 1, 2, 0),
    ):
        size_bytes += new_bytes
        pace.check(size_bytes, messages, now_s)
        assert (pace.slow_checks, pace.is_first) == (expected, messages == 0), now_s
