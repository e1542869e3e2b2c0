"""Posts and archives for tests of the formats of archives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from people import ANN, BOB, CYD

from cablestore import Delete, Dialect, Identity, Info, Join, Post, Role, Text, Topic
from cablestore.archive.format.archive import Archive, decode_archive, encode_archive, verified_post
from cablestore.archive.format.cid import CODEC_MANIFEST, Cid
from cablestore.archive.format.commitment import Commitment
from cablestore.archive.format.index import Index, VerifiedIndex, decode_index, make_index, signed_index, verify_index
from cablestore.archive.format.period import WEEK_MS, Period, week_of
from cablestore.archive.format.profile import PROFILES, Entry, Profile, Record, topics_of, with_id
from cablestore.protocol.dialect import LEGACY
from cablestore.protocol.waku import EVERYONE_TOPIC, WakuMessage, message_of

WEEK = week_of(1_700_000_000_000)
CONTROL = Identity.derive("archives", "control")
STRANGER = Identity.derive("archives", "stranger")
KEY = bytes(range(32))
PEOPLE = (ANN, BOB, CYD)

CHANNELS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=64)
BODIES = st.one_of(
    st.builds(Text, CHANNELS, st.text(st.characters(exclude_categories=["Cs"]), max_size=50)),
    st.builds(Topic, CHANNELS, st.just("a topic")),
    st.builds(Join, st.sampled_from(["default", "dev", "ÄÖ/% +"])),
    st.builds(Delete, st.tuples(st.binary(min_size=32, max_size=32))),
    st.just(Info.of(name="Ann")),
    st.builds(Role, st.just(""), st.just(0), st.sampled_from(["", "dev"]), st.just(ANN.key), st.just(1)),
)
POSTS = st.builds(
    lambda who, body, at: who.post(body, at=at),
    st.sampled_from(PEOPLE),
    BODIES,
    st.integers(WEEK.from_ms, WEEK.to_ms - 1),
)
HISTORIES = st.lists(POSTS, min_size=1, max_size=8, unique_by=lambda post: post.hash)
KEYS = st.sampled_from([None, KEY])

both = pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
sealed_or_not = pytest.mark.parametrize("key", [None, KEY], ids=["public", "sealed"])
CIDS = tuple(str(Cid(CODEC_MANIFEST, bytes([number]) * 32)) for number in range(3))
FORMS = [(profile, cids) for profile in PROFILES.values() for cids in ((), CIDS)]
every_form = pytest.mark.parametrize(
    ("profile", "cids"), FORMS, ids=[f"{profile.name}{'-by-cid' if cids else ''}" for profile, cids in FORMS]
)
DELETION = ANN.delete(ANN.text("default", "gone", at=WEEK.from_ms), at=WEEK.to_ms + 5)


def ordered(posts: list[Post]) -> list[WakuMessage]:
    """Return the messages of posts in the order of archives."""
    return sorted(map(message_of, posts), key=lambda message: (message.timestamp_ns, message.post_hash))


def archive_of(profile: Profile, posts: list[Post], key: bytes | None = None, period: Period = WEEK) -> Archive:
    messages = ordered(posts)
    topics = topics_of(profile, (message.content_topic for message in messages))
    return encode_archive(profile, period, topics, messages, key)


def content_of(archive: Archive) -> bytes:
    """Return the bytes that a content id identifies: the document, sealed or not, without the padding after it."""
    return archive.stored[: len(archive.stored) - archive.padding_bytes]


def posts_in(profile: Profile, stored: bytes, entry: Entry, key: bytes | None = None) -> list[Post]:
    records = decode_archive(profile, stored, entry, key)
    return [verified_post(profile, record, LEGACY) for record in records if isinstance(record, Record)]


@dataclass(frozen=True)
class Community:
    """A control node's `data`, archive by archive, and the parts of its index."""

    profile: Profile
    archives: tuple[Archive, ...]
    entries: tuple[Entry, ...]
    commitments: tuple[Commitment, ...]

    @property
    def data(self) -> bytes:
        return b"".join(archive.stored for archive in self.archives)

    @property
    def index(self) -> Index:
        return make_index(self.profile, self.entries)


def community(profile: Profile, *, weeks: int = 3, key: bytes | None = None, cids: tuple[str, ...] = ()) -> Community:
    """Return one archive a week of two posts each, with content ids if `cids` has some."""
    archives, entries, commitments = [], [], []
    offset_bytes = 0
    for number in range(weeks):
        period = Period(WEEK.from_ms + number * WEEK_MS, WEEK.to_ms + number * WEEK_MS)
        posts = [ANN.text("default", f"{number}", at=period.from_ms), BOB.named("Bob", at=period.to_ms - 1)]
        archive = archive_of(profile, posts, key, period)
        cid = cids[number] if cids else None
        entry = archive.entry(profile, offset_bytes) if cid is None else entry_by_cid(profile, archive, cid)
        offset_bytes += len(archive.stored)
        archives.append(archive)
        entries.append(entry)
        commitments.append(Commitment(entry.archive_id, archive.sha256, archive.num_posts, archive.merkle_root, cid))
    return Community(profile, tuple(archives), tuple(entries), tuple(commitments))


def three_posts() -> list[Post]:
    """Return the same posts in every run."""
    return [
        ANN.text("default", "hello", at=WEEK.from_ms),
        BOB.named("Bob", at=WEEK.from_ms + 1),
        ANN.text("dev", "bye", at=WEEK.to_ms - 1),
    ]


def filler(size_bytes: int) -> WakuMessage:
    """Return an invalid post of any size as a message."""
    return WakuMessage(bytes(size_bytes), EVERYONE_TOPIC, WEEK.from_ms * 10**6, bytes(32))


def archive_with_document_of(profile: Profile, size_bytes: int, key: bytes | None = None) -> Archive:
    """Return the archive of one message whose document, before padding and seal, has this size."""
    topics = topics_of(profile, [EVERYONE_TOPIC])
    payload_size = size_bytes - len(profile.document(WEEK, topics, [filler(20_000)])) + 20_000
    messages = [filler(payload_size)]
    assert len(profile.document(WEEK, topics, messages)) == size_bytes
    return encode_archive(profile, WEEK, topics, messages, key)


def entry_by_cid(profile: Profile, archive: Archive, cid: str) -> Entry:
    return with_id(profile, Entry("", archive.period, archive.topics, cid=cid))


def by_cid(profile: Profile, archive: Archive) -> Entry:
    return entry_by_cid(profile, archive, "z")


def signed(made: Community, *, sealed: bool = False, identity: Identity = CONTROL, **more: Any) -> Index:
    return signed_index(made.index, made.commitments, identity, LEGACY, sealed=sealed, **more)


def verified(
    data: bytes, made: Community, *, key: bytes | None = None, control: Identity = CONTROL, dialect: Dialect = LEGACY
) -> VerifiedIndex:
    size = None if made.entries[0].cid else len(made.data)
    return verify_index(data, made.profile, control.public_key, dialect, data_size_bytes=size, key=key)


def decoded(data: bytes, made: Community) -> Index:
    return decode_index(data, made.profile, data_size_bytes=None if made.entries[0].cid else len(made.data))
