"""Exact limits of the records of an export, and the order that its segments must have."""

from __future__ import annotations

from pathlib import Path

import pytest
from people import ANN

from cablestore.export.writer import post_record, record_start, write_post_segment

LATEST_MS = 2**56 - 1
"""The last timestamp that fits in the eight bytes of a record."""


@pytest.mark.parametrize(("timestamp_ms", "size_bytes"), [(LATEST_MS + 1, 32), (0, 31), (LATEST_MS, 33)])
def test_a_record_of_an_impossible_post_is_rejected(timestamp_ms: int, size_bytes: int) -> None:
    with pytest.raises(ValueError, match=f"no post can have the timestamp {timestamp_ms} and the hash"):
        record_start(timestamp_ms, bytes(size_bytes))


@pytest.mark.parametrize("order", [(0, 0), (1, 0), (0, 1, 1), (0, 2, 1)])
@pytest.mark.parametrize("in_one_block", [True, False])
def test_unordered_or_repeated_items_of_a_segment_are_rejected(
    tmp_path: Path, order: tuple[int, ...], in_one_block: bool
) -> None:
    posts = [ANN.text("default", str(number)) for number in range(3)]
    records = [post_record(post.timestamp_ms, post.hash, post.raw, post.type) for post in (posts[n] for n in order)]
    blocks = [records] if in_one_block else [[record] for record in records]
    with pytest.raises(ValueError, match="in order and unique"):
        write_post_segment(tmp_path, 1, blocks)
