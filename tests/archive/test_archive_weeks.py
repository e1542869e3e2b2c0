"""Posts as records, split into weeks and converted to messages, mostly without decoding."""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest
from archiving import BODIES, PEOPLE
from hypothesis import given
from hypothesis import strategies as st
from people import ANN

from cablestore import DRAFT8, LEGACY, Dialect, Post, Text, encode_post
from cablestore.archive.format.period import WEEK_MS, week_of
from cablestore.archive.weeks import by_week, messages_of
from cablestore.export.writer import post_record
from cablestore.limits import MAX_ARCHIVED_TIMESTAMP_MS
from cablestore.protocol.dialect import ARCHIVES_CHANNEL
from cablestore.protocol.post import decode_post
from cablestore.protocol.waku import message_of

TIMES_MS = st.one_of(
    st.integers(0, MAX_ARCHIVED_TIMESTAMP_MS),
    st.integers(0, 300),
    st.sampled_from([2**35 - 1, 2**35, 2**42 - 1, 2**42]),  # the varint grows by a byte
    st.integers(1_700_000_000_000, 1_700_000_000_000 + 4 * WEEK_MS),
)
LINKS = st.sampled_from([0, 1, 2, 127, 128, 200])


@st.composite
def posts(draw: st.DrawFn, dialect: Dialect) -> list[Post]:
    """Draw posts in order."""
    found = {}
    for body, at, links, author in draw(
        st.lists(st.tuples(BODIES, TIMES_MS, LINKS, st.sampled_from(PEOPLE)), max_size=8)
    ):
        raw = encode_post(
            body,
            links=tuple(bytes([n]) * 32 for n in range(links)),
            timestamp_ms=at,
            identity=author.identity,
            dialect=dialect,
        ).raw
        post = decode_post(raw, dialect)
        found[post.hash] = post
    return sorted(found.values(), key=lambda post: (post.timestamp_ms, post.hash))


def records_of(posts: list[Post]) -> list[bytes]:
    return [post_record(post.timestamp_ms, post.hash, post.raw, post.type) for post in posts]


@pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=lambda dialect: dialect.name)
@given(data=st.data())
def test_messages_equal_those_of_the_decoded_posts(dialect: Dialect, data: st.DataObject) -> None:
    history = data.draw(posts(dialect))
    found = list(messages_of(records_of(history), dialect))
    assert found == [message_of(decode_post(post.raw, dialect)) for post in history]


def test_announcements_are_omitted() -> None:
    announcement, text_post = (
        ANN.text(ARCHIVES_CHANNEL, "archives 1 x", at=1_700_000_000_000),
        ANN.text("dev", "", at=1),
    )
    assert [message.payload for message in messages_of(records_of([announcement, text_post]), LEGACY)] == [
        text_post.raw
    ]


@pytest.mark.thorough
@given(posts(LEGACY), st.lists(st.integers(0, 8)), st.integers(0, 2**43))
def test_weeks_do_not_depend_on_the_lengths_of_lists(history: list[Post], cuts: list[int], now_ms: int) -> None:
    bounds = [0, *sorted(cuts), 8]
    records = records_of(history)
    lists = [records[start:stop] for start, stop in pairwise(bounds)]
    expected = [
        (week, records_of(list(group)))
        for week, group in groupby(history, key=lambda post: week_of(post.timestamp_ms))
        if week.to_ms <= now_ms
    ]
    assert list(by_week(lists, now_ms)) == expected


@pytest.mark.parametrize(("end_ms", "weeks"), [(0, 0), (WEEK_MS - 1, 0), (WEEK_MS, 1), (3 * WEEK_MS, 2)])
def test_weeks_that_ended_are_in_order(end_ms: int, weeks: int) -> None:
    """A week without posts is left out. The first moment of a week belongs to it, and a list may end anywhere."""
    start_ms = week_of(1_700_000_000_000).from_ms
    first = [ANN.text("dev", "", at=start_ms + at_ms) for at_ms in (0, 5, WEEK_MS - 1)]
    third = [ANN.text("dev", "", at=start_ms + 2 * WEEK_MS)]
    records = records_of([*first, *third])
    expected = [(week_of(start_ms), records[:3]), (week_of(start_ms + 2 * WEEK_MS), records[3:])]
    for lists in ([records], [records[:1], [], records[1:]], [records[:3], records[3:]]):
        assert list(by_week(lists, start_ms + end_ms)) == expected[:weeks]


def test_long_channel_names_are_decoded() -> None:
    """A name of 64 code points has up to 256 bytes, and its length then has two."""
    for name in ("ü" * 63, "ü" * 64, "😀" * 64):
        raw = encode_post(
            Text(name, "hi"), links=(), timestamp_ms=1_700_000_000_000, identity=ANN.identity, dialect=LEGACY
        ).raw
        post = decode_post(raw, LEGACY)
        assert [*messages_of(records_of([post]), LEGACY)] == [message_of(post)]
