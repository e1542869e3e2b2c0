"""Imports of exports: merged in any order, selected by filters, with all deletions applied."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from exporting import export, forge, import_, in_memory, posts_in, scratch_folder, stones_in
from history import AUTHORS, CHANNELS, TIMES_MS, Model, histories
from hypothesis import given, settings
from hypothesis import strategies as st
from people import ANN, BOB, START_MS

from cablestore import (
    DRAFT8,
    LEGACY,
    CableStore,
    Dialect,
    Join,
    Post,
    Role,
    Text,
    Tombstone,
    decode_post,
    encode_post,
)
from cablestore.arguments import checked_window
from cablestore.errors import ExportError
from cablestore.export import Filters, read_manifest, verify_export
from cablestore.export.writer import ExportWriter, post_record
from cablestore.index.tombstone import Skeleton
from cablestore.protocol.acts import consent_of
from cablestore.protocol.body import BLOCK, DELETE, INFO, LINKABLE_TYPES, MODERATION, ROLE, UNBLOCK, Delete

# --- import ----------------------------------------------------------------------------------------


@pytest.mark.thorough
@settings(max_examples=60)
@given(
    histories(),
    st.lists(st.integers(1, 7), min_size=24, max_size=24),
    st.permutations([0, 1, 2]),
    st.booleans(),
)
def test_overlapping_exports_are_imported_in_any_order(
    history: tuple[Dialect, list[Post]], holders: list[int], order: list[int], at_once: bool
) -> None:
    """Each post is in one, two or all of three stores. A deletion may be in another store than its target."""
    dialect, posts = history
    with scratch_folder() as scratch:
        folders = [Path(scratch) / str(number) for number in range(3)]
        for number, folder in enumerate(folders):
            part = [post for post, holder in zip(posts, holders, strict=False) if holder & 1 << number]
            export(part, folder, dialect)
        with in_memory(dialect, posts) as store:
            expected = list(store.dump())
        with in_memory(dialect) as store:
            calls = [[folders[number] for number in order]] if at_once else [[folders[number]] for number in order]
            for call in calls:
                summary = store.import_exports(call)
                assert set(summary.verdicts) <= {"accepted", "duplicate", "deleted"}
            assert list(store.dump()) == expected
            assert store.check().is_clean
            again = store.import_exports(folders)
            assert set(again.verdicts) <= {"duplicate", "deleted"}
            assert again.skeletons == 0
            assert list(store.dump()) == expected


def test_channel_names_of_every_kind_are_imported(tmp_path: Path) -> None:
    for dialect in (LEGACY, DRAFT8):
        posts = [
            encode_post(body, links=(), timestamp_ms=START_MS + at, identity=AUTHORS[0], dialect=dialect)
            for at, channel in enumerate(CHANNELS)
            for body in (Join(channel), Text(channel, "gone"))
        ]
        gone = [post for post in posts if post.type == 0]
        deletion = encode_post(
            Delete(tuple(post.hash for post in gone)),
            links=(),
            timestamp_ms=START_MS,
            identity=AUTHORS[0],
            dialect=dialect,
        )
        manifest = export([*posts, deletion], tmp_path / dialect.name, dialect)
        stones = stones_in(manifest)
        names = {stone.skeleton.channel for stone in stones if stone.skeleton is not None}
        assert names == {dialect.channel_id(channel) for channel in CHANNELS}
        with in_memory(dialect, [*posts, deletion]) as store:
            assert import_(dialect, tmp_path / dialect.name) == list(store.dump())


def test_another_dialect_is_rejected_before_any_post_is_stored(tmp_path: Path) -> None:
    export([ANN.text("default", "x")], tmp_path / "legacy", LEGACY)
    export([], tmp_path / "draft8", DRAFT8)
    with in_memory(LEGACY) as store:
        with pytest.raises(ExportError, match="dialect draft8, expected legacy"):
            store.import_exports([tmp_path / "legacy", tmp_path / "draft8"])
        assert store.stats().posts == {}


def test_local_only_posts_are_not_exported(tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "store", identity=AUTHORS[0]) as store:
        private = encode_post(
            Role("", 1, "", ANN.key, 1), links=(), timestamp_ms=START_MS, identity=AUTHORS[0], dialect=LEGACY
        )
        [outcome] = store.ingest([private.raw])
        assert outcome.verdict.value == "accepted"
        store.post("default", "hello")
        manifest = store.export(tmp_path / "export")
    assert manifest.posts == {"join": 1, "text": 1}
    assert private.raw[100:] not in b"".join(posts_in(manifest))


def test_skeletons_without_proof_are_not_imported(tmp_path: Path) -> None:
    """The test has a tombstone without its post/delete, and one of another author's post."""
    living = ANN.text("default", "I live")
    not_his = BOB.delete(living)
    skeleton = Skeleton(0, START_MS, "default", ())
    buries = Tombstone(living.hash, BOB.key, not_his.timestamp_ms, not_his.hash, skeleton)
    unproven = Tombstone(bytes([9]) * 32, ANN.key, START_MS, bytes([8]) * 32, skeleton)
    misquoted = Tombstone(bytes([7]) * 32, BOB.key, not_his.timestamp_ms, not_his.hash, skeleton)
    forge(tmp_path / "forged", [living, not_his], [buries, unproven, misquoted])
    problems = verify_export(tmp_path / "forged", signatures=True).problems
    assert [
        digest.hex() in problem.what for digest, problem in zip((misquoted.target, living.hash), problems, strict=True)
    ]
    with in_memory(LEGACY) as store, in_memory(LEGACY, [living, not_his]) as expected:
        summary = store.import_exports([tmp_path / "forged"])
        assert (summary.skeletons, summary.rejected_skeletons) == (0, 3)
        assert list(store.dump()) == list(expected.dump())
        assert store.check().is_clean


def test_invalid_posts_in_an_export_are_counted_and_not_imported(tmp_path: Path) -> None:
    good, bad = ANN.text("default", "good", at=1), ANN.text("default", "bad", at=2)
    unsigned = bad.raw[:40] + bytes(4) + bad.raw[44:]
    writer = ExportWriter(tmp_path / "export", LEGACY, {})
    writer.add_records(
        [[post_record(1, good.hash, good.raw, 0), post_record(2, decode_post(unsigned, LEGACY).hash, unsigned, 0)]]
    )
    writer.finish()
    with in_memory(LEGACY) as store:
        summary = store.import_exports([tmp_path / "export"])
        assert summary.verdicts == Counter({"accepted": 1, "bad signature": 1})
    assert verify_export(tmp_path / "export").is_clean
    [problem] = verify_export(tmp_path / "export", signatures=True).problems
    assert "bad signature" in str(problem)


def test_an_interrupted_import_continues(tmp_path: Path, whole: Path) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with CableStore.open(tmp_path / "store") as store, in_memory(LEGACY) as other:
        with pytest.raises(KeyboardInterrupt):
            store.import_exports([whole], progress=interrupt)
        store.import_exports([whole])
        other.import_exports([whole])
        assert store.dump_digest() == other.dump_digest()


# --- filters ---------------------------------------------------------------------------------------


def matches(post: Post, filters: Filters, known_here: set[bytes]) -> bool:
    """Return True if the filters select a post that is not a post/delete."""
    if filters.authors and post.author not in filters.authors:
        return False
    after_ms, before_ms = checked_window(filters.after_ms, None)[0], checked_window(None, filters.before_ms)[1]
    if not after_ms <= post.timestamp_ms < (before_ms or 2**60):
        return False
    if not filters.channels or (post.type in LINKABLE_TYPES and post.channel in filters.channels):
        return True
    if post.type == INFO:
        return post.author in known_here
    return post.type in (BLOCK, UNBLOCK) or (
        post.type in (ROLE, MODERATION) and post.channel in {"", *filters.channels}
    )


filters_drawn = st.builds(
    Filters,
    channels=st.frozensets(st.sampled_from(CHANNELS), max_size=2),
    authors=st.frozensets(st.sampled_from([author.public_key for author in AUTHORS]), max_size=2),
    after_ms=st.none() | st.sampled_from(TIMES_MS),
    before_ms=st.none() | st.sampled_from(TIMES_MS[1:]),
)


@settings(max_examples=100)
@given(histories(), filters_drawn)
def test_filters_select_the_same_posts_as_a_model(history: tuple[Dialect, list[Post]], filters: Filters) -> None:
    dialect, posts = history
    model = Model(posts)
    asked = replace(filters, channels=frozenset(map(dialect.channel_id, filters.channels)))
    live = list(model.live.values())
    consents = [consent for consent in map(consent_of, live) if consent is not None]
    known_here = {p.author for p in live if p.type in LINKABLE_TYPES and p.channel in asked.channels}
    known_here |= {consent.user for consent in consents if not consent.accepts}
    expected = {p.hash for p in live if p.type != DELETE and matches(p, asked, known_here)}
    stones = {
        (target, post.author): (target, post.author) not in {(d.hash, d.author) for d in model.dead.values()}
        or matches(model.dead[target], asked, known_here)
        for post in model.deletes
        if isinstance(post.body, Delete)
        for target in post.body.hashes
    }
    for post in model.deletes:
        assert isinstance(post.body, Delete)
        alone = not asked.channels and matches(post, asked, known_here)
        if alone or any(stones[target, post.author] for target in post.body.hashes):
            expected.add(post.hash)
    with scratch_folder() as scratch:
        manifest = export(posts, Path(scratch) / "export", dialect, filters=filters)
        assert {decode_post(raw, dialect).hash for raw in posts_in(manifest)} == expected
        found = {(stone.target, stone.author) for stone in stones_in(manifest)}
        assert found == {place for place, passes in stones.items() if passes}
        assert manifest.filters == asked
        assert read_manifest(manifest.folder) == manifest
        assert verify_export(manifest.folder).is_clean
        with in_memory(dialect) as store:
            summary = store.import_exports([manifest.folder])
            assert summary.rejected_skeletons == 0
            assert store.check().is_clean


def test_invalid_filters_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="public keys of 32 bytes"):
        Filters(authors=frozenset([b"short"]))
    with pytest.raises(ExportError, match="milliseconds since 1970"):
        Filters(after_ms=-1)
    with pytest.raises(ExportError, match="UTF-8"):
        Filters(frozenset({"\udc80"}))
    filters = Filters(frozenset({"a", "\x00"}), frozenset({ANN.key}), 1, 2)
    export([], tmp_path / "export", LEGACY, filters=filters)
    assert read_manifest(tmp_path / "export").filters == filters
