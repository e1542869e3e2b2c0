"""Exact limits of the records of an export, and the order of its records and segments."""

from __future__ import annotations

from pathlib import Path

import pytest
from exporting import export, files_of, some_posts
from inside import engine_of, write_rows
from people import ANN, BOB, raws

from cablestore import LEGACY, CableStore, Post, limits
from cablestore.errors import CorruptStoreError, ExportError
from cablestore.export import Filters, verify_export
from cablestore.export.records import records_in_order
from cablestore.export.sort import merge, write_sorted
from cablestore.export.writer import POST_AT, post_record, record_start, write_post_segment
from cablestore.index.reader import data_key

LATEST_MS = 2**56 - 1
"""The last timestamp that fits in the eight bytes of a record."""


@pytest.mark.parametrize(("timestamp_ms", "size_bytes"), [(LATEST_MS + 1, 32), (0, 31), (LATEST_MS, 33)])
def test_a_record_of_an_impossible_post_is_rejected(timestamp_ms: int, size_bytes: int) -> None:
    with pytest.raises(ValueError, match=f"a post cannot have the timestamp {timestamp_ms} and the hash"):
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


def ordered(posts: list[Post]) -> list[bytes]:
    return [post.raw for post in sorted(posts, key=lambda post: (post.timestamp_ms, post.hash))]


@pytest.mark.parametrize("run_size_bytes", [1, 60_000, 10**9])
def test_posts_are_read_in_order_with_and_without_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_size_bytes: int
) -> None:
    """A chunk of 250 posts is about 50 kB. Records are longer than their posts."""
    monkeypatch.setattr(limits, "MAX_RUN_SIZE_BYTES", run_size_bytes)
    posts = [(ANN, BOB)[number % 2].text("default", f"{number} {'x' * 50}") for number in range(600)]
    done: list[int] = []
    with CableStore.in_memory() as store:
        store.ingest(raws(*posts), verify=False)
        batches = list(records_in_order(engine_of(store).reading(), tmp_path, progress=done.append))
    assert [record[POST_AT:] for batch in batches for record in batch] == ordered(posts)
    assert len(list(tmp_path.iterdir())) == {1: 3, 60_000: 2, 10**9: 0}[run_size_bytes]
    assert done == [250, 250, 100]


def test_an_empty_store_has_no_records(tmp_path: Path) -> None:
    with CableStore.in_memory() as store:
        assert list(records_in_order(engine_of(store).reading(), tmp_path, progress=lambda _: None)) == [[]]


def test_small_runs_of_an_export_and_of_its_verification_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    posts = [*some_posts(), *(ANN.text("default", f"{number}") for number in range(260))]
    export(posts, tmp_path / "one", LEGACY)
    export(posts, tmp_path / "runs", LEGACY, run_size_bytes=1)
    assert files_of(tmp_path / "runs") == files_of(tmp_path / "one")
    monkeypatch.setattr(limits, "MAX_RUN_SIZE_BYTES", 100)
    assert verify_export(tmp_path / "runs").is_clean


@pytest.mark.parametrize(("at", "change"), [(0, 0), (3, 1), (5, 1), (-1, 1)])
def test_a_damaged_run_is_an_error(tmp_path: Path, at: int, change: int) -> None:
    """The run is cut off within its header or its records, or one of its bytes is changed."""
    path = tmp_path / "run"
    write_sorted(path, [b"b", b"a"])
    assert list(merge([path])) == [[b"a", b"b"]]
    assert list(merge([path], b"a")) == [[b"b"]]
    data = bytearray(path.read_bytes())
    damaged = [data[:3], data[:-1]]
    data[at] ^= change
    for content in (*damaged, *([data] if change else [])):
        path.write_bytes(content)
        with pytest.raises(ExportError, match=r"run is damaged\. Remove"):
            list(merge([path]))


def test_a_filtered_export_rejects_damaged_posts(tmp_path: Path) -> None:
    one, other = ANN.text("default", "one"), ANN.text("default", "other")
    for number, (raw, reason) in enumerate([(other.raw, "its bytes do not match its hash"), (b"garbage", "truncated")]):
        with CableStore.in_memory() as store:
            store.ingest(raws(one))
            key = data_key(one.hash_hex)
            write_rows(store, {key: raw})
            with pytest.raises(CorruptStoreError, match=f"{one.hash.hex()}.* is damaged: .*{reason}"):
                store.export(tmp_path / f"{number}", filters=Filters(channels=frozenset({"default"})))
            write_rows(store, {key: one.raw})


def test_an_export_during_a_drop_rejects_damaged_posts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CableStore.in_memory() as store:
        kept = ANN.text("default", "kept")
        store.ingest(raws(kept, *(BOB.text("default", f"{number}") for number in range(9))))
        monkeypatch.setattr(limits, "MAX_BATCH_POSTS", 4)
        store.moderation.drop(users=[BOB.key])
        assert store.moderation.is_sweeping
        assert store.export(tmp_path / "whole").posts == {"text": 1}
        write_rows(store, {data_key(kept.hash_hex): b"garbage"})
        with pytest.raises(CorruptStoreError, match=f"{kept.hash.hex()}.* is damaged"):
            store.export(tmp_path / "damaged")
