"""Exports: equal stores give equal bytes, what comes out goes in again, and no damage goes unseen."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import blake3
import msgpack
import pytest
import zstandard
from history import AUTHORS, CHANNELS, NOW_MS, TIMES_MS, Draft, Model, build, histories
from hypothesis import given, settings
from hypothesis import strategies as st
from people import ANN, BOB, START_MS, raws

from cablestore import (
    DRAFT8,
    LEGACY,
    CableStore,
    CorruptExportError,
    CorruptStoreError,
    Dialect,
    ExportError,
    Filters,
    Join,
    Manifest,
    Post,
    Role,
    Segment,
    Skeleton,
    Text,
    Tombstone,
    decode_post,
    encode_post,
    export_sort,
    limits,
    read_manifest,
    verify_export,
)
from cablestore.body import BLOCK, DELETE, INFO, LINKABLE_TYPES, ROLE, Delete
from cablestore.cli import main
from cablestore.export import filters_of, read_arrivals, read_posts, read_tombstones, segment_name
from cablestore.export_store import _records
from cablestore.export_write import (
    ExportWriter,
    place_of,
    post_record,
    write_manifest,
    write_post_segment,
    write_tombstone_segment,
)
from cablestore.reader import data_key
from cablestore.segment import SegmentWriter

SMALL: dict[str, Any] = {"segment_size_bytes": 700, "run_size_bytes": 900}
"""Sizes with which a history of a few posts takes several runs and segments."""


IN_MEMORY = Path("/dev/shm")  # where there is such a folder, hundreds of exports need not wait for a disk


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None)


def in_memory(dialect: Dialect, posts: Iterable[Post] = ()) -> CableStore:
    store = CableStore.in_memory(dialect=dialect, identity=AUTHORS[0], verify_threads=1)
    store.ingest(raws(*posts), verify=False)
    return store


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "arrivals.json"}


def export(posts: Iterable[Post], folder: Path, dialect: Dialect, **options: Any) -> Manifest:
    with in_memory(dialect, posts) as store:
        return store.export(folder, **{**SMALL, **options})


def import_(dialect: Dialect, *folders: Path) -> list[tuple[bytes, bytes]]:
    """The dump of a new store that took these exports."""
    with in_memory(dialect) as store:
        store.import_exports(folders)
        return list(store.dump())


def posts_in(manifest: Manifest) -> list[bytes]:
    return [
        raw for segment in manifest.post_segments for block in read_posts(manifest.folder, segment) for raw in block
    ]


def stones_in(manifest: Manifest) -> list[Tombstone]:
    return [
        stone
        for segment in manifest.tombstone_segments
        for block in read_tombstones(manifest.folder, segment)
        for stone in block
    ]


def some_posts() -> list[Post]:
    """Eight types, deletions before, after and without their targets, of others, and a deletion of a deletion."""
    kinds = (0, 4, 5, 3, 2, 6, 8, 0, 0, 1, 1, 3)
    drafts = [
        Draft(kind, author, channel, 3 + (author + kind) % 4, word % 4, (word, word + 3, 40))
        for word, kind in enumerate(kinds)
        for author, channel in ((0, 0), (1, 2), (2, 7))
    ]
    return build(drafts, LEGACY)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export with several segments of both kinds."""
    folder = tmp_path_factory.mktemp("whole") / "export"
    manifest = export(some_posts(), folder, LEGACY, segment_size_bytes=600)
    assert len(manifest.post_segments) > 2
    assert len(manifest.tombstone_segments) > 1
    assert {stone.is_effective for stone in stones_in(manifest)} == {True, False}
    assert verify_export(folder, signatures=True).is_clean
    return folder


# --- equal stores, equal bytes ---------------------------------------------------------------------


@settings(max_examples=60)
@given(histories(), st.randoms(use_true_random=False), st.integers(1, 9))
def test_equal_stores_give_equal_bytes_and_come_back(
    history: tuple[Dialect, list[Post]], random: Random, batch_posts: int
) -> None:
    dialect, posts = history
    with scratch_folder() as scratch:
        one, other = Path(scratch) / "one", Path(scratch) / "other"
        with in_memory(dialect, posts) as store:
            manifest = store.export(one, **SMALL)
            expected = list(store.dump())
            counts = store.stats().posts
        shuffled = [*posts, *posts[:5]]
        random.shuffle(shuffled)
        with in_memory(dialect) as store:
            store.ingest(raws(*shuffled), batch_posts=batch_posts, verify=False)
            assert store.export(other, **SMALL) == replace(manifest, folder=other)
        assert files_of(one) == files_of(other)
        assert not set(files_of(one)) - {"manifest.json", *(segment.file for segment in manifest.segments)}
        live = sorted(Model(posts).live.values(), key=lambda post: (post.timestamp_ms, post.hash))
        assert posts_in(manifest) == raws(*live)
        assert manifest.posts == counts
        report = verify_export(one, signatures=True)
        assert report.is_clean, report.problems
        assert (report.posts, report.tombstones) == (len(live), manifest.tombstones)
        assert import_(dialect, one) == expected
        assert read_manifest(one) == manifest


def test_golden_bytes(tmp_path: Path) -> None:
    """If this fails, exports are no longer the bytes that FORMAT.md describes: give them another format number."""
    manifest = export(some_posts(), tmp_path / "export", LEGACY, segment_size_bytes=5000)
    assert [(s.file, s.items, s.content_blake3[:16]) for s in manifest.segments] == [
        ("posts-000000.seg", 20, "df4cf7778469fddb"),
        ("posts-000001.seg", 12, "44fccf8c3d98d4ae"),
        ("tombstones-000000.seg", 15, "cef577ce79841b88"),
    ]
    fields = json.loads((tmp_path / "export" / "manifest.json").read_text())
    assert list(fields) == [
        "format", "dialect", "views", "filters", "posts", "tombstones", "segments", "content_blake3", "blake3",
    ]  # fmt: skip
    claimed = fields.pop("blake3")
    assert blake3.blake3((json.dumps(fields, indent=1) + "\n").encode()).hexdigest() == claimed
    assert fields["posts"] == manifest.posts
    content = b"".join(bytes.fromhex(segment["content_blake3"]) for segment in fields["segments"])
    assert blake3.blake3(content).hexdigest() == fields["content_blake3"] == manifest.content_blake3
    for segment in fields["segments"]:
        data = (tmp_path / "export" / segment["file"]).read_bytes()
        assert (len(data), blake3.blake3(data).hexdigest()) == (segment["size_bytes"], segment["blake3"])
        plain = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
        assert blake3.blake3(plain).hexdigest() == segment["content_blake3"]


def test_an_empty_store(tmp_path: Path) -> None:
    manifest = export([], tmp_path / "export", DRAFT8)
    assert manifest.segments == ()
    assert verify_export(tmp_path / "export").is_clean
    with in_memory(DRAFT8) as store:
        assert store.import_exports([tmp_path / "export"]).posts == 0


@given(st.integers(0, limits.MAX_TIMESTAMP_MS), st.integers(0, 200))
def test_records_sort_like_time_and_hash(timestamp_ms: int, links: int) -> None:
    post = encode_post(
        Text("c", "x"), links=(bytes(32),) * links, timestamp_ms=timestamp_ms, identity=AUTHORS[0], dialect=LEGACY
    )
    [record] = _records([(data_key(post.hash_hex), post.raw)])
    assert record == post_record(timestamp_ms, post.hash, post.raw, post.type)
    assert place_of(record) == (timestamp_ms, post.hash)
    for other_ms in (0, 1, 127, 128, 2**35, 2**42, timestamp_ms + 1, limits.MAX_TIMESTAMP_MS):
        other = post_record(other_ms, bytes(32), b"", 0)
        assert (other < record) == ((other_ms, bytes(32)) < (timestamp_ms, post.hash))


@settings(max_examples=50)
@given(st.lists(st.binary(min_size=1, max_size=20), unique=True), st.integers(1, 8), st.randoms(use_true_random=False))
def test_runs_merge_into_order_and_go_on_behind_any_record(found: list[bytes], runs: int, random: Random) -> None:
    with scratch_folder() as scratch, pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_sort, "_BLOCK_SIZE_BYTES", 30)
        paths = [Path(scratch) / str(number) for number in range(runs)]
        for number, path in enumerate(paths):
            export_sort.write_run(path, found[number::runs])
        after = random.choice([b"", *found])
        merged = [record for batch in export_sort.merge(paths, after) for record in batch]
        assert merged == sorted(record for record in found if record > after)


@given(st.lists(st.lists(st.binary(max_size=9), max_size=9)), st.integers(1, 30))
def test_blocks_are_cut_wherever_batches_end(batches: list[list[bytes]], most_bytes: int) -> None:
    blocks = list(export_sort.cut(batches, most_bytes))
    assert blocks == list(export_sort.cut([[record for batch in batches for record in batch]], most_bytes))
    assert [record for block in blocks for record in block] == [record for batch in batches for record in batch]
    assert all(sum(map(len, block[:-1])) < most_bytes for block in blocks)
    assert all(sum(map(len, block)) >= most_bytes for block in blocks[:-1])


def test_blocks_and_segments_have_their_sizes(tmp_path: Path) -> None:
    """`SEGMENT_BLOCK_SIZE_BYTES` and `SEGMENT_SIZE_BYTES` are reached and exceeded by one item only."""
    assert limits.SEGMENT_SIZE_BYTES == 64 * limits.SEGMENT_BLOCK_SIZE_BYTES
    raw = bytes(limits.MAX_POST_SIZE_BYTES - 100)
    writer = ExportWriter(tmp_path, LEGACY, {})
    writer.add_posts((number, number.to_bytes(32, "big"), raw, 0) for number in range(64 * 5 + 7))
    first, second = writer.finish().post_segments
    assert [len(block) for block in read_posts(tmp_path, first)] == [5] * 52
    assert [len(block) for block in read_posts(tmp_path, second)] == [5] * 13 + [2]


def test_a_block_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    posts = limits.MAX_SEGMENT_BLOCK_SIZE_BYTES // limits.MAX_POST_SIZE_BYTES + 8  # the limit is held to a few MB
    with SegmentWriter(tmp_path / "posts-000000.seg", 1) as writer:
        writer.write([bytes(limits.MAX_POST_SIZE_BYTES)] * posts)
        written = writer.close()
    assert written.size_bytes < 100_000
    segment = Segment("posts-000000.seg", "posts", posts, written.size_bytes, written.blake3, written.content_blake3)
    with pytest.raises(CorruptExportError, match="block of more than"):
        list(read_posts(tmp_path, segment))


def write_part(arguments: tuple[Path, int, list[bytes]]) -> Segment:
    folder, number, records = arguments
    return write_post_segment(folder, number, export_sort.cut([records], 300))


def test_segments_can_be_written_in_parallel(tmp_path: Path) -> None:
    posts = [ANN.text("default", str(number), at=START_MS + number) for number in range(40)]
    records = [post_record(post.timestamp_ms, post.hash, post.raw, post.type) for post in posts]
    with get_context("spawn").Pool(2) as pool:
        parts = [(tmp_path, number, records[number * 10 : number * 10 + 10]) for number in range(4)]
        segments = pool.map(write_part, parts)
    manifest = write_manifest(tmp_path, LEGACY, {"data": 1}, None, segments)
    assert manifest.posts == {"text": 40}
    assert verify_export(tmp_path, signatures=True).is_clean
    with in_memory(LEGACY, posts) as store:
        assert import_(LEGACY, tmp_path) == list(store.dump())


def test_what_is_out_of_order_is_not_written(tmp_path: Path) -> None:
    posts = [(2, bytes(32), b"raw", 0), (1, bytes(32), b"raw", 0)]
    writer = ExportWriter(tmp_path, LEGACY, {})
    for wrong in (posts, [posts[0], posts[0]]):
        with pytest.raises(ValueError, match="in order"):
            writer.add_posts(wrong)
    stone = Tombstone(bytes(32), bytes(32), 1, bytes(32))
    with pytest.raises(ValueError, match="in order"):
        writer.add_tombstones([stone, stone])
    with pytest.raises(ValueError, match="at least one"):
        write_tombstone_segment(tmp_path, 0, [])
    assert list(tmp_path.iterdir()) == []


# --- import ----------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    histories(),
    st.lists(st.integers(1, 7), min_size=24, max_size=24),
    st.permutations([0, 1, 2]),
    st.booleans(),
)
def test_parts_merge_in_any_order(
    history: tuple[Dialect, list[Post]], holders: list[int], order: list[int], at_once: bool
) -> None:
    """Each post is in one, two or all of three stores; a deletion may be elsewhere than its target."""
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


def test_channel_names_of_every_kind(tmp_path: Path) -> None:
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


def test_another_dialect_is_refused_before_anything_is_stored(tmp_path: Path) -> None:
    export([ANN.text("default", "x")], tmp_path / "legacy", LEGACY)
    export([], tmp_path / "draft8", DRAFT8)
    with in_memory(LEGACY) as store:
        with pytest.raises(ExportError, match="dialect draft8, expected is legacy"):
            store.import_exports([tmp_path / "legacy", tmp_path / "draft8"])
        assert store.stats().posts == {}


def test_local_only_posts_stay_at_home(tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "store", identity=AUTHORS[0]) as store:
        private = encode_post(
            Role("", 1, "", ANN.key, 1), links=(), timestamp_ms=START_MS, identity=AUTHORS[0], dialect=LEGACY
        )
        [outcome] = store.ingest([private.raw])
        assert outcome.verdict.value == "accepted"
        store.text("default", "hello")
        manifest = store.export(tmp_path / "export")
    assert manifest.posts == {"text": 1}
    assert private.raw[100:] not in b"".join(posts_in(manifest))


def forge(folder: Path, posts: list[Post], stones: list[Tombstone]) -> None:
    writer = ExportWriter(folder, LEGACY, {})
    posts.sort(key=lambda post: (post.timestamp_ms, post.hash))
    writer.add_posts((post.timestamp_ms, post.hash, post.raw, post.type) for post in posts)
    writer.add_tombstones(stones)
    writer.finish()


def test_skeletons_without_proof_are_left_out(tmp_path: Path) -> None:
    """A tombstone that no post/delete bears out, and one that would bury what somebody else wrote."""
    living = ANN.text("default", "I live")
    not_his = BOB.delete(living)
    skeleton = Skeleton(0, START_MS, "default", ())
    buries = Tombstone(living.hash, BOB.key, not_his.timestamp_ms, not_his.hash, skeleton)
    unproven = Tombstone(bytes([9]) * 32, ANN.key, START_MS, bytes([8]) * 32, skeleton)
    misquoted = Tombstone(bytes([7]) * 32, BOB.key, not_his.timestamp_ms, not_his.hash, skeleton)
    stones = sorted([buries, unproven, misquoted], key=lambda stone: stone.target)
    forge(tmp_path / "forged", [living, not_his], stones)
    [problem] = verify_export(tmp_path / "forged", signatures=True).problems
    assert misquoted.target.hex() in problem.what
    with in_memory(LEGACY) as store, in_memory(LEGACY, [living, not_his]) as expected:
        summary = store.import_exports([tmp_path / "forged"])
        assert (summary.skeletons, summary.refused_skeletons) == (0, 3)
        assert list(store.dump()) == list(expected.dump())
        assert store.check().is_clean


def test_bad_posts_in_an_export_are_counted_and_left_out(tmp_path: Path) -> None:
    good, bad = ANN.text("default", "good", at=1), ANN.text("default", "bad", at=2)
    unsigned = bad.raw[:40] + bytes(4) + bad.raw[44:]
    writer = ExportWriter(tmp_path / "export", LEGACY, {})
    writer.add_posts([(1, good.hash, good.raw, 0), (2, decode_post(unsigned, LEGACY).hash, unsigned, 0)])
    writer.finish()
    with in_memory(LEGACY) as store:
        summary = store.import_exports([tmp_path / "export"])
        assert summary.verdicts == Counter({"accepted": 1, "bad signature": 1})
    assert verify_export(tmp_path / "export").is_clean
    [problem] = verify_export(tmp_path / "export", signatures=True).problems
    assert "bad signature" in str(problem)


def test_an_interrupted_import_goes_on(tmp_path: Path, whole: Path) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with CableStore.open(tmp_path / "store") as store, in_memory(LEGACY) as other:
        with pytest.raises(KeyboardInterrupt):
            store.import_exports([whole], progress=interrupt)
        store.import_exports([whole])
        other.import_exports([whole])
        assert store.dump_digest() == other.dump_digest()


# --- filters ---------------------------------------------------------------------------------------


def matches(post: Post, filters: Filters, acquainted: set[bytes]) -> bool:
    """What the rules say of a post that is no post/delete."""
    if filters.authors and post.author not in filters.authors:
        return False
    if not (filters.start_ms or 0) <= post.timestamp_ms < (filters.end_ms or 2**60):
        return False
    if not filters.channels or (post.type in LINKABLE_TYPES and post.channel in filters.channels):
        return True
    if post.type in (INFO, BLOCK):
        return post.author in acquainted
    return post.type == ROLE and post.channel in {"", *filters.channels}


filters_drawn = st.builds(
    Filters,
    channels=st.frozensets(st.sampled_from(CHANNELS), max_size=2),
    authors=st.frozensets(st.sampled_from([author.public_key for author in AUTHORS]), max_size=2),
    start_ms=st.none() | st.sampled_from(TIMES_MS),
    end_ms=st.none() | st.sampled_from(TIMES_MS[1:]),
)


@settings(max_examples=100)
@given(histories(), filters_drawn)
def test_filters(history: tuple[Dialect, list[Post]], filters: Filters) -> None:
    dialect, posts = history
    model = Model(posts)
    asked = replace(filters, channels=frozenset(map(dialect.channel_id, filters.channels)))
    live = list(model.live.values())
    acquainted = {p.author for p in live if p.type in LINKABLE_TYPES and p.channel in asked.channels}
    expected = {p.hash for p in live if p.type != DELETE and matches(p, asked, acquainted)}
    stones = {
        (target, post.author): (target, post.author) not in {(d.hash, d.author) for d in model.dead.values()}
        or matches(model.dead[target], asked, acquainted)
        for post in model.deletes
        if isinstance(post.body, Delete)
        for target in post.body.hashes
    }
    for post in model.deletes:
        assert isinstance(post.body, Delete)
        alone = not asked.channels and matches(post, asked, acquainted)
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
            assert summary.refused_skeletons == 0
            assert store.check().is_clean


def test_filters_say_what_no_post_matches() -> None:
    with pytest.raises(ExportError, match="public key of 32 bytes"):
        Filters(authors=frozenset([b"short"]))
    with pytest.raises(ExportError, match="milliseconds since 1970"):
        Filters(start_ms=-1)
    with pytest.raises(ExportError, match="UTF-8"):
        Filters(frozenset({"\udc80"}))
    filters = Filters(frozenset({"a", "\x00"}), frozenset({ANN.key}), 1, 2)
    assert filters_of(json.loads(json.dumps(filters.fields()))) == filters


# --- damage ----------------------------------------------------------------------------------------


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return copied(whole, tmp_path / "copy")


def copied(whole: Path, folder: Path) -> Path:
    folder.mkdir()
    for path in whole.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def assert_found(folder: Path, name: str) -> None:
    report = verify_export(folder)
    assert not report.is_clean
    assert name in {problem.file for problem in report.problems}


@settings(max_examples=300)
@given(st.data())
def test_any_flipped_bit_is_found(whole: Path, data: st.DataObject) -> None:
    with scratch_folder() as scratch:
        folder = copied(whole, Path(scratch) / "copy")
        path = data.draw(st.sampled_from(sorted(folder.iterdir())))
        content = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        assert_found(folder, path.name)


def test_any_missing_or_cut_file_is_found(whole: Path, tmp_path: Path) -> None:
    for number, name in enumerate(sorted(path.name for path in whole.iterdir())):
        for size_bytes in (None, 0, 1, (whole / name).stat().st_size - 1):
            folder = copied(whole, tmp_path / f"{number} {size_bytes}")
            if size_bytes is None:
                (folder / name).unlink()
            else:
                (folder / name).write_bytes((whole / name).read_bytes()[:size_bytes])
            if (name, size_bytes) == ("manifest.json", None):
                with pytest.raises(ExportError, match=r"is no export: it has no manifest\.json"):
                    verify_export(folder)
            else:
                assert_found(folder, name)


def with_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest and give it the right checksum."""
    fields = json.loads((folder / "manifest.json").read_text())
    fields.pop("blake3")
    change(fields)
    text = json.dumps(fields, indent=1) + "\n"
    fields["blake3"] = blake3.blake3(text.encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(fields, indent=1) + "\n")


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda f: f.update(format=2), ExportError, "format 2, this version of cablestore reads 1"),
        (lambda f: f.update(dialect="klingon"), ExportError, "dialect 'klingon', known are legacy, draft8"),
        (lambda f: f["segments"][0].update(file="../posts-000000.seg"), CorruptExportError, "should"),
        (lambda f: f["segments"].reverse(), CorruptExportError, "should"),
        (lambda f: f["segments"][0].update(items=1), CorruptExportError, "agree"),
        (lambda f: f["segments"][0].update(items=True), CorruptExportError, "number"),
        (lambda f: f["segments"][0].update(extra=1), CorruptExportError, "agree"),
        (lambda f: f.update(tombstones=0), CorruptExportError, "not those of its segments"),
        (lambda f: f.update(more=0), CorruptExportError, "not those of its segments"),
        (lambda f: f.pop("views"), CorruptExportError, "views"),
    ],
)
def test_a_manifest_that_says_something_else(
    copy: Path, change: Callable[[dict[str, Any]], object], kind: type[ExportError], message: str
) -> None:
    with_manifest(copy, change)
    with pytest.raises(kind, match=message) as caught:
        read_manifest(copy)
    assert type(caught.value) is kind
    assert "manifest.json" in str(caught.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=200)
@given(st.data())
def test_no_manifest_raises_anything_foreign(whole: Path, data: st.DataObject) -> None:
    """Values replaced anywhere, with a checksum that is right, or plain nonsense."""
    with scratch_folder() as scratch:
        folder = copied(whole, Path(scratch) / "copy")

        def change(fields: dict[str, Any]) -> None:
            place: Any = fields
            while True:
                key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
                if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
                    place[key] = data.draw(json_values)
                    return
                place = place[key]

        if data.draw(st.integers(0, 4)):
            with_manifest(folder, change)
        else:
            (folder / "manifest.json").write_bytes(data.draw(st.binary() | json_values.map(json.dumps).map(str.encode)))
        (folder / "arrivals.json").write_text(json.dumps(data.draw(json_values)))
        for read in (read_manifest, read_arrivals, verify_export):
            with contextlib.suppress(ExportError):
                read(folder)


def test_deeply_nested_json(copy: Path) -> None:
    for name, read in (("manifest.json", read_manifest), ("arrivals.json", read_arrivals)):
        (copy / name).write_text("[" * 200_000)
        with pytest.raises(CorruptExportError, match=name):
            read(copy)


items = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**63) | st.binary(max_size=40) | st.binary(min_size=32, max_size=32),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=6,
)
values = st.tuples(
    st.integers(-1, 2**64 - 1) | st.booleans(),
    st.binary(min_size=31, max_size=32),
    st.none()
    | st.tuples(
        st.integers(-1, 11),
        st.integers(-1, 2**64 - 1),
        st.none() | st.text(max_size=70),
        st.lists(st.binary(min_size=31, max_size=32) | st.integers(0, 1), max_size=2),
    ),
).map(msgpack.packb)
stones_like = st.tuples(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), values)


@given(st.lists(st.lists(items | stones_like, min_size=1, max_size=3) | items, max_size=3), st.booleans(), st.binary())
def test_no_segment_raises_anything_foreign(blocks: list[Any], is_posts: bool, tail: bytes) -> None:
    """Blocks of anything, with a checksum that is right. What is read is posts or tombstones that can be stored."""
    with scratch_folder() as scratch:
        name = segment_name("posts" if is_posts else "tombstones", 0)
        data = b"".join(zstandard.compress(msgpack.packb(block)) for block in blocks) + tail
        (Path(scratch) / name).write_bytes(data)
        count = sum(len(block) for block in blocks if isinstance(block, list))
        segment = Segment(
            name, "posts" if is_posts else "tombstones", count, len(data), blake3.blake3(data).hexdigest(), "0" * 64
        )
        try:
            if is_posts:
                assert all(isinstance(raw, bytes) for block in read_posts(Path(scratch), segment) for raw in block)
                return
            stones = [stone for block in read_tombstones(Path(scratch), segment) for stone in block]
        except CorruptExportError:
            return
        with in_memory(LEGACY) as store, store._engine.transaction() as transaction:
            plan = transaction.plan()
            for stone in stones:
                plan.lay(stone)
            transaction.commit(plan.finish(), sync=False)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda posts: posts.reverse(), "does not come behind"),
        (lambda posts: posts.append(posts[-1]), "does not come behind"),
        (lambda posts: posts.insert(0, b"no post"), "does not decode"),
        (lambda posts: posts.pop(), "counts, first or last"),
    ],
)
def test_posts_that_are_not_what_the_manifest_says(
    copy: Path, spoil: Callable[[list[bytes]], object], message: str
) -> None:
    """A segment written anew with other posts, under right checksums."""
    first = read_manifest(copy).segments[0]
    [posts] = read_posts(copy, first)
    spoil(posts)
    with SegmentWriter(copy / first.file, 1) as writer:
        writer.write(posts)
        written = writer.close()

    def adapt(fields: dict[str, Any]) -> None:
        more = len(posts) - first.items
        entry = fields["segments"][0]
        entry.update(items=len(posts), size_bytes=written.size_bytes, blake3=written.blake3)
        entry.update(content_blake3=written.content_blake3)
        kind = next(iter(entry["posts"]))
        entry["posts"][kind] += more
        fields["posts"][kind] += more
        sums = b"".join(bytes.fromhex(segment["content_blake3"]) for segment in fields["segments"])
        fields["content_blake3"] = blake3.blake3(sums).hexdigest()

    with_manifest(copy, adapt)
    report = verify_export(copy)
    assert any(message in problem.what and problem.file == first.file for problem in report.problems), report.problems


def test_an_import_of_a_damaged_export_says_which_file(copy: Path) -> None:
    name = read_manifest(copy).segments[1].file
    (copy / name).write_bytes(bytes(10))
    with in_memory(LEGACY) as store, pytest.raises(CorruptExportError, match=name):
        store.import_exports([copy])


# --- interruption ----------------------------------------------------------------------------------


CHILD = """
import os, signal, sys
from pathlib import Path
from cablestore import CableStore

store, out, when, instant = sys.argv[1:]
replace, count = Path.replace, 0

def dying(self, target):
    global count
    count += 1
    if count == int(instant) and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    replace(self, target)
    if count == int(instant) and when == "after":
        os.kill(os.getpid(), signal.SIGKILL)

with CableStore.open(store, create=False) as opened:
    Path.replace = dying
    opened.export(Path(out), segment_size_bytes=2000, run_size_bytes=3000)
"""


def stored(folder: Path) -> CableStore:
    store = CableStore.open(folder, verify_threads=1)
    store.ingest(raws(*some_posts()), verify=False)
    return store


@pytest.mark.parametrize(("when", "instant"), [("before", 6), ("after", 5)])
def test_kill_9_at_any_instant(tmp_path: Path, when: str, instant: int) -> None:
    """Each child dies after a few files and the next goes on, until one comes to the end."""
    with stored(tmp_path / "store") as store:
        store.export(tmp_path / "straight", segment_size_bytes=2000, run_size_bytes=3000)
    out = tmp_path / "out"
    command = [sys.executable, "-c", CHILD, str(tmp_path / "store"), str(out), when, str(instant)]
    seen: dict[str, tuple[int, int]] = {}
    kills = 0
    while kills < 30:
        child = subprocess.run(command, capture_output=True, check=False, timeout=60)
        finished = {}
        if (out / "unfinished.json").exists():
            work = json.loads((out / "unfinished.json").read_text())
            names = [segment["file"] for segment in work["segments"] if segment["kind"] == "posts"]
            if not work["is_merged"]:
                names += [f"run-{number:06d}" for number in range(work["runs"])]
            finished = {name: (out / name).stat() for name in names}
        elif child.returncode == 0:
            finished = {path.name: path.stat() for path in out.iterdir()}
        for name, known in seen.items():
            if name in finished:
                assert (finished[name].st_ino, finished[name].st_mtime_ns) == known, f"{name} was written again"
        seen |= {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in finished.items()}
        if child.returncode == 0 or (out / "manifest.json").exists():
            break
        assert child.returncode == -signal.SIGKILL, child.stderr.decode()
        kills += 1
        with pytest.raises(ExportError, match=r"unfinished|is no export"):
            read_manifest(out)
    assert kills > 2
    (out / "unfinished.json").unlink(missing_ok=True)
    assert files_of(out) == files_of(tmp_path / "straight")
    assert read_arrivals(out) == read_arrivals(tmp_path / "straight")


class Interrupt:
    """Interrupts after so many posts."""

    def __init__(self, posts: int) -> None:
        self.left = posts

    def __call__(self, posts: int) -> None:
        self.left -= posts
        if self.left <= 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("posts", [1, 40])
def test_ctrl_c_and_a_store_that_changed_meanwhile(tmp_path: Path, posts: int) -> None:
    out = tmp_path / "out"
    with stored(tmp_path / "store") as store:
        with pytest.raises(KeyboardInterrupt):
            store.export(out, progress=Interrupt(posts), **SMALL)
        with pytest.raises(ExportError, match=r"unfinished export: run the same export again"):
            read_manifest(out)
        store.ingest(raws(ANN.text("default", "new")))
        store.export(out, **SMALL)
        store.export(tmp_path / "straight", **SMALL)
        assert files_of(out) == files_of(tmp_path / "straight")


def test_other_arguments_begin_anew(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with stored(tmp_path / "store") as store:
        with pytest.raises(KeyboardInterrupt):
            store.export(out, progress=Interrupt(40), **SMALL)
        filters = Filters(authors=frozenset([AUTHORS[0].public_key]))
        store.export(out, filters=filters, **SMALL)
        store.export(tmp_path / "straight", filters=filters, **SMALL)
        assert files_of(out) == files_of(tmp_path / "straight")


def test_a_skeleton_that_came_meanwhile_is_a_change(tmp_path: Path, whole: Path) -> None:
    """An import lays skeletons without an entry in the arrival log."""
    deletions = [post for post in some_posts() if post.type == DELETE]
    with CableStore.open(tmp_path / "store") as store:
        store.ingest(raws(*(post for post in some_posts() if post.hash not in Model(some_posts()).dead)), verify=False)
        before = store.last_sequence
        with pytest.raises(KeyboardInterrupt):
            store.export(tmp_path / "out", progress=Interrupt(40), **SMALL)
        summary = store.import_exports([whole])
        assert summary.skeletons > 0
        assert store.last_sequence == before
        store.export(tmp_path / "out", **SMALL)
        assert len(deletions) > 1
    assert files_of(tmp_path / "out") == files_of_export(some_posts(), tmp_path / "straight")


def files_of_export(posts: list[Post], folder: Path) -> dict[str, bytes]:
    export(posts, folder, LEGACY)
    return files_of(folder)


def test_writers_go_on_meanwhile(tmp_path: Path) -> None:
    """What is stored by another thread during an export is not in it."""
    with stored(tmp_path / "store") as store:
        store.export(tmp_path / "before", **SMALL)
        last = store.last_sequence
        begun, written = threading.Event(), threading.Event()

        def write() -> None:
            begun.wait(10)
            for number in range(50):
                store.text("default", str(number), sync=False)
            store.ingest(raws(*(BOB.text("default", str(number)) for number in range(50))))
            written.set()

        def progress(_: int) -> None:
            begun.set()
            assert written.wait(20)

        thread = threading.Thread(target=write)
        thread.start()
        store.export(tmp_path / "during", progress=progress, **SMALL)
        thread.join()
        assert store.last_sequence > last
        assert files_of(tmp_path / "during") == files_of(tmp_path / "before")
        arrivals = read_arrivals(tmp_path / "during")
        assert arrivals is not None
        assert arrivals[1] == last
        assert store._engine.folder is not None
        assert arrivals[0] == store._engine.folder.header.store_id
        assert store.check().is_clean


@pytest.mark.parametrize("name", ["manifest.json", "notes.txt", "file", "both"])
def test_what_is_there_is_not_overwritten(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    with in_memory(LEGACY, some_posts()) as store:
        if name == "file":
            out.write_text("mine")
        elif name == "both":
            with pytest.raises(KeyboardInterrupt):
                store.export(out, progress=Interrupt(1), **SMALL)
            (out / "notes.txt").write_text("mine")
        else:
            out.mkdir()
            (out / name).write_text("mine")
        with pytest.raises(ExportError, match=r"finished export|holds notes|is a file"):
            store.export(out, **SMALL)
    kept = out if name == "file" else out / ("notes.txt" if name == "both" else name)
    assert kept.read_text() == "mine"


def test_two_exports_into_one_folder(tmp_path: Path) -> None:
    with in_memory(LEGACY, some_posts()) as store:

        def progress(_: int) -> None:
            with pytest.raises(ExportError, match="another export into"):
                store.export(tmp_path / "out")

        store.export(tmp_path / "out", progress=progress)
    assert verify_export(tmp_path / "out").is_clean


FULL = """
import resource, signal, sys
from pathlib import Path
from cablestore import CableStore, StorageError

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with CableStore.open(sys.argv[1], create=False) as store:
    # No file may grow beyond this, which the kernel says with the same kind of error as a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
    try:
        store.export(Path(sys.argv[2]))
    except StorageError as error:
        print(error)
"""


@pytest.mark.parametrize("limit_size_bytes", [300, 4000])
def test_a_full_disk(tmp_path: Path, limit_size_bytes: int) -> None:
    with stored(tmp_path / "store"):
        pass
    command = [sys.executable, "-c", FULL, str(tmp_path / "store"), str(tmp_path / "out"), str(limit_size_bytes)]
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert child.returncode == 0, child.stderr
    assert str(tmp_path / "out") in child.stdout
    assert "free space" in child.stdout
    with CableStore.open(tmp_path / "store", create=False) as store:
        store.export(tmp_path / "out")
    assert verify_export(tmp_path / "out").is_clean


def test_a_damaged_post_ends_the_export(tmp_path: Path) -> None:
    with in_memory(LEGACY, some_posts()) as store:
        post = next(iter(store.posts_by(AUTHORS[0].public_key)))
        store._engine._database.write({data_key(post.hash_hex): post.raw[:90]}, sync=False)
        for filters in (None, Filters(start_ms=0)):
            with pytest.raises(CorruptStoreError, match=r"cablestore rebuild"):
                store.export(tmp_path / "out", filters=filters)


# --- the command line ------------------------------------------------------------------------------


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def command(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        found = capsys.readouterr()
        return int(str(exit_.value.code or 0)), found.out, found.err

    return command


def test_export_verify_and_import_by_command(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    source, target, out, part = (tmp_path / name for name in ("source", "target", "out", "part"))
    with stored(source) as store:
        digest = store.dump_digest()
    status, said, _ = run("export", out, "--store", source, "--json")
    assert status == 0
    assert json.loads(said)["content_blake3"] == read_manifest(out).content_blake3
    status, said, _ = run("verify-export", out, "--signatures")
    assert (status, "all is well" in said) == (0, True)
    status, said, _ = run("import", out, "--store", target, "--json")
    assert (status, set(json.loads(said)["verdicts"])) == (0, {"accepted"})
    with CableStore.open(target, create=False) as store:
        assert store.dump_digest() == digest
    status, said, _ = run("import", out, "--store", target)
    assert status == 0
    assert "posts duplicate" in said
    key = AUTHORS[0].public_key
    arguments = ["--channel", "default", "--author", key.hex(), "--after", "2000-01-01", "--before", "1d"]
    assert run("export", part, "--store", source, *arguments)[0] == 0
    filters = read_manifest(part).filters
    assert filters is not None
    assert (filters.channels, filters.authors) == (frozenset({"default"}), frozenset({key}))
    assert filters.start_ms is not None
    assert filters.start_ms < NOW_MS < (filters.end_ms or 0)


def test_commands_that_fail(tmp_path: Path, run: Callable[..., tuple[int, str, str]], copy: Path) -> None:
    assert run("export", tmp_path / "out", "--store", tmp_path / "nothing")[0] == 2
    with stored(tmp_path / "store"):
        pass
    status, _, error = run("export", copy, "--store", tmp_path / "store")
    assert (status, "finished export" in error) == (2, True)
    status, _, error = run("verify-export", tmp_path)
    assert (status, "is no export" in error) == (2, True)
    assert run("import", tmp_path, "--store", tmp_path / "new")[0] == 2
    assert not (tmp_path / "new").exists()
    export([], tmp_path / "draft8", DRAFT8)
    assert run("import", tmp_path / "draft8", "--store", tmp_path / "store")[0] == 2
    assert run("import", copy, tmp_path / "draft8", "--store", tmp_path / "new")[0] == 2
    name = read_manifest(copy).segments[0].file
    (copy / name).unlink()
    status, said, _ = run("verify-export", copy)
    assert (status, f"✗ {name}" in said) == (1, True)
    status, said, _ = run("verify-export", copy, "--json")
    assert status == 1
    assert json.loads(said.splitlines()[0])["file"] == name


def test_the_shell_sees_an_interrupted_export(tmp_path: Path) -> None:
    """Ctrl-C ends the command with 130, and the same command goes on."""
    with stored(tmp_path / "store"):
        pass
    code = """
import os, signal, sys
from cablestore import cli, export_store

def interrupted(*arguments):
    os.kill(os.getpid(), signal.SIGINT)
    return iter(())

export_store.merge, merge = interrupted, export_store.merge
cli.main(["export", sys.argv[1], "--store", sys.argv[2]])
"""
    command = [sys.executable, "-c", code, str(tmp_path / "out"), str(tmp_path / "store")]
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert child.returncode == 130, child.stderr
    command = [sys.executable, "-m", "cablestore", "export", str(tmp_path / "out"), "--store", str(tmp_path / "store")]
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert child.returncode == 0, child.stderr
    assert verify_export(tmp_path / "out", signatures=True).posts == len(Model(some_posts()).live)
