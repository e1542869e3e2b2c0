"""Exports: their content, equal bytes for equal stores, and posts that are stored during an export."""

from __future__ import annotations

import json
import shutil
import threading
import tracemalloc
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from random import Random

import blake3
import pytest
from exporting import SMALL, export, files_of, import_, in_memory, posts_in, scratch_folder, some_posts, stored
from history import AUTHORS, Model, histories
from hypothesis import given, settings
from hypothesis import strategies as st
from people import ANN, BOB, START_MS, raws
from waiting import LIMIT_S

from cablestore import DRAFT8, LEGACY, CableStore, Dialect, Post, Text, Tombstone, encode_post, limits, zstd
from cablestore.errors import ExportError
from cablestore.export import Segment, read_manifest, sort, verify_export
from cablestore.export.manifest import read_arrivals, read_posts
from cablestore.export.records import records_of
from cablestore.export.segment import SegmentWriter, read_segment
from cablestore.export.writer import (
    ExportWriter,
    place_of,
    post_record,
    write_post_segment,
    write_tombstone_segment,
)
from cablestore.index.header import peek
from cablestore.index.packing import pack
from cablestore.index.reader import data_key


@settings(max_examples=60)
@given(histories(), st.randoms(use_true_random=False), st.integers(1, 9))
def test_equal_stores_export_equal_bytes_and_are_imported(
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


def test_exports_have_the_documented_bytes(tmp_path: Path) -> None:
    """If this fails, exports no longer have the bytes of docs/reference/FORMAT.md, and need a new format number."""
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
        plain = zstd.decompress(data)
        assert blake3.blake3(plain).hexdigest() == segment["content_blake3"]


def test_an_empty_store_is_exported_and_imported(tmp_path: Path) -> None:
    manifest = export([], tmp_path / "export", DRAFT8)
    assert manifest.segments == ()
    assert verify_export(tmp_path / "export").is_clean
    with in_memory(DRAFT8) as store:
        assert store.import_exports([tmp_path / "export"]).posts == 0


@given(st.integers(0, limits.MAX_TIMESTAMP_MS), st.integers(0, 200))
def test_records_sort_by_time_and_hash(timestamp_ms: int, links: int) -> None:
    post = encode_post(
        Text("c", "x"), links=(bytes(32),) * links, timestamp_ms=timestamp_ms, identity=AUTHORS[0], dialect=LEGACY
    )
    [record] = records_of([(data_key(post.hash_hex), post.raw)])
    assert record == post_record(timestamp_ms, post.hash, post.raw, post.type)
    assert place_of(record) == (timestamp_ms, post.hash)
    for other_ms in (0, 1, 127, 128, 2**35, 2**42, timestamp_ms + 1, limits.MAX_TIMESTAMP_MS):
        other = post_record(other_ms, bytes(32), b"", 0)
        assert (other < record) == ((other_ms, bytes(32)) < (timestamp_ms, post.hash))


@settings(max_examples=50)
@given(st.lists(st.binary(min_size=1, max_size=20), unique=True), st.integers(1, 8), st.randoms(use_true_random=False))
def test_runs_merge_in_order_and_continue_after_any_record(found: list[bytes], runs: int, random: Random) -> None:
    with scratch_folder() as scratch, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sort, "_BLOCK_SIZE_BYTES", 30)
        paths = [Path(scratch) / str(number) for number in range(runs)]
        for number, path in enumerate(paths):
            sort.write_sorted(path, found[number::runs])
        after = random.choice([b"", *found])
        merged = [record for batch in sort.merge(paths, after) for record in batch]
        assert merged == sorted(record for record in found if record > after)


@given(st.lists(st.lists(st.binary(max_size=9), max_size=9)), st.integers(1, 30))
def test_blocks_do_not_depend_on_the_sizes_of_batches(batches: list[list[bytes]], most_bytes: int) -> None:
    blocks = list(sort.into_blocks(batches, most_bytes))
    assert blocks == list(sort.into_blocks([[record for batch in batches for record in batch]], most_bytes))
    assert [record for block in blocks for record in block] == [record for batch in batches for record in batch]
    assert all(sum(map(len, block[:-1])) < most_bytes for block in blocks)
    assert all(sum(map(len, block)) >= most_bytes for block in blocks[:-1])


def test_blocks_and_segments_have_the_configured_sizes(tmp_path: Path) -> None:
    """Blocks have `SEGMENT_BLOCK_SIZE_BYTES` and segments `SEGMENT_SIZE_BYTES`, exceeded by at most one item."""
    assert limits.SEGMENT_SIZE_BYTES == 64 * limits.SEGMENT_BLOCK_SIZE_BYTES
    raw = bytes(limits.MAX_POST_SIZE_BYTES - 100)
    writer = ExportWriter(tmp_path, LEGACY, {})
    writer.add_records([post_record(number, number.to_bytes(32, "big"), raw, 0)] for number in range(64 * 5 + 7))
    first, second = writer.finish().post_segments
    assert [len(block) for block in read_posts(tmp_path, first)] == [5] * 52
    assert [len(block) for block in read_posts(tmp_path, second)] == [5] * 13 + [2]


@pytest.mark.parametrize("more", [0, 1])
def test_a_block_beyond_the_limit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    """Small blocks before a block do not count."""
    most_bytes = 2**21
    monkeypatch.setattr(limits, "MAX_SEGMENT_BLOCK_SIZE_BYTES", most_bytes)
    largest = pack([bytes(most_bytes // 4)] * 3 + [bytes(most_bytes // 4 - 21 + more)])
    assert len(largest) == most_bytes + more  # the headers have 21 bytes
    path = tmp_path / "x.seg"
    with SegmentWriter(path, 1) as writer:
        for block in [largest] if more else [pack([b"x"]), largest, largest]:
            writer.write_packed(block)
        writer.close()
    if not more:
        assert [sum(map(len, block)) for block in read_segment(path)] == [1, most_bytes - 21, most_bytes - 21]
        return
    with pytest.raises(ExportError, match="block of more than"):
        list(read_segment(path))


@pytest.mark.parametrize("more", [0, 1])
def test_the_number_of_items_of_a_block_is_limited(tmp_path: Path, more: int) -> None:
    with SegmentWriter(tmp_path / "x.seg", 1) as writer:
        writer.write_packed(pack([None] * (2**20 + more)))
        written = writer.close()
    blocks = read_segment(tmp_path / "x.seg", written.blake3)
    if not more:
        assert [len(block) for block in blocks] == [2**20]
        return
    with pytest.raises(ExportError, match="is not a segment of blocks"):
        list(blocks)


def test_an_unclosed_segment_is_removed(tmp_path: Path) -> None:
    with SegmentWriter(tmp_path / "x.seg", 1) as writer:
        writer.write_packed(pack([b"x"]))
    assert list(tmp_path.iterdir()) == []


def write_part(arguments: tuple[Path, int, list[bytes]]) -> Segment:
    folder, number, records = arguments
    return write_post_segment(folder, number, sort.into_blocks([records], 300))


@pytest.mark.thorough
def test_segments_can_be_written_in_parallel(tmp_path: Path) -> None:
    posts = [ANN.text("default", str(number), at=START_MS + number) for number in range(40)]
    records = [post_record(post.timestamp_ms, post.hash, post.raw, post.type) for post in posts]
    with get_context("spawn").Pool(2) as pool:
        parts = [(tmp_path, number, records[number * 10 : number * 10 + 10]) for number in range(4)]
        segments = pool.map(write_part, parts)
    manifest = ExportWriter(tmp_path, LEGACY, {"data": 1}, written=segments).finish()
    assert manifest.posts == {"text": 40}
    assert verify_export(tmp_path, signatures=True).is_clean
    with in_memory(LEGACY, posts) as store:
        assert import_(LEGACY, tmp_path) == list(store.dump())


def test_a_rejected_segment_leaves_no_file(tmp_path: Path) -> None:
    writer = ExportWriter(tmp_path, LEGACY, {})
    record = post_record(2, bytes(32), b"raw", 0)
    with pytest.raises(ValueError, match="in order"):
        writer.add_records([record] for _ in range(2))
    stone = Tombstone(bytes(32), bytes(32), 1, bytes(32))
    with pytest.raises(ValueError, match="in order"):
        writer.add_tombstones([stone, stone])
    with pytest.raises(ValueError, match="at least one"):
        write_tombstone_segment(tmp_path, 0, [])
    assert list(tmp_path.iterdir()) == []


# --- concurrent writes -----------------------------------------------------------------------------


def test_writers_continue_during_an_export(tmp_path: Path) -> None:
    """Posts that another thread stores during an export are not in it."""
    with stored(tmp_path / "store") as store:
        store.export(tmp_path / "before", **SMALL)
        last = store.last_sequence
        begun, written = threading.Event(), threading.Event()

        def write() -> None:
            begun.wait(LIMIT_S)
            for number in range(50):
                store.post("default", str(number), sync=False)
            store.ingest(raws(*(BOB.text("default", str(number)) for number in range(50))))
            written.set()

        def progress(_: int) -> None:
            begun.set()
            assert written.wait(LIMIT_S)

        thread = threading.Thread(target=write)
        thread.start()
        store.export(tmp_path / "during", progress=progress, **SMALL)
        thread.join()
        assert store.last_sequence > last
        assert files_of(tmp_path / "during") == files_of(tmp_path / "before")
        arrivals = read_arrivals(tmp_path / "during")
        assert arrivals is not None
        assert arrivals.through == last
        header = peek(tmp_path / "store")
        assert header is not None
        assert arrivals.store == header.store_id
        assert store.check().is_clean


@pytest.mark.parametrize("later", [0, 1, 5, 40])
def test_an_export_does_not_cover_a_log_with_another_history(tmp_path: Path, later: int) -> None:
    """A reindexing adds the entries after the export.

    Here the store lost its last writes, and other entries have their numbers.
    """
    path, copy = tmp_path / "store", tmp_path / "copy"
    texts = [ANN.text("default", f"{number}") for number in range(10 + later)]
    with CableStore.open(path) as store:
        store.ingest(raws(*texts[:5]))
    shutil.copytree(path, copy)
    with CableStore.open(path) as store:
        store.ingest(raws(*texts[5:10]))
        store.local.set_draft("default", "unfinished")
        store.export(tmp_path / "out")
        store.local.set_draft("default", "still unfinished")
        arrivals = read_arrivals(tmp_path / "out")
        assert arrivals is not None
        with store.snapshot() as state:
            assert arrivals.position_in(state.reader) == arrivals.through > 0
    with CableStore.open(copy) as store:
        store.ingest(raws(*texts[10:]))
        with store.snapshot() as state:
            assert arrivals.position_in(state.reader) == 0


# --- memory ----------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_memory_of_an_export_does_not_grow_with_the_store(tmp_path: Path) -> None:
    peaks: list[int] = []
    with CableStore.open(tmp_path / "store") as store:
        for number in range(2):
            texts = (ANN.text("default", f"{number} {text} " + 200 * "x") for text in range((6_000, 18_000)[number]))
            store.ingest((text.raw for text in texts), verify=False)
            tracemalloc.start()
            store.export(tmp_path / str(number), segment_size_bytes=300_000, run_size_bytes=1_000_000)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[1] < 1.4 * peaks[0], peaks
