"""The content store: round trips, damage, quotas, failing disks, and exclusive use by one process."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from content_child import bytes_of
from content_nodes import tree_cid
from folders import SUPPORT
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from cablestore import limits
from cablestore.archive.content.dataset import DatasetWriter
from cablestore.archive.content.store import ContentStore
from cablestore.archive.errors import NoRoomError, NoSuchContentError
from cablestore.archive.format.cid import (
    BLOCK_SIZE_BYTES,
    CODEC_BLOCK,
    Cid,
    ManifestFormat,
    leaf_of,
    manifest_cid,
)
from cablestore.errors import ArchiveError, StorageError, StoreLockedError

CHILD = SUPPORT / "content_child.py"
NAMES = st.sampled_from([None, "a", "b.bin"])


def all_of(store: ContentStore, cid: Cid, start: int = 0) -> bytes:
    return b"".join(store.get(cid, start))


@pytest.mark.parametrize("header", ["", "{}", "[1]", "[" * 100_000])
def test_a_damaged_header_is_reported(tmp_path: Path, header: str) -> None:
    (tmp_path / "CONTENT").write_text(header)
    with pytest.raises(ArchiveError, match="invalid header of a content store"):
        ContentStore.open(tmp_path)


def files_of(folder: Path) -> dict[str, list[str]]:
    return {
        kind: sorted(path.name for path in (folder / kind).iterdir())
        for kind in ("data", "leaves", "manifests", "incoming")
    }


def assert_whole(folder: Path) -> set[str]:
    """Check that the store opens, every dataset is readable, and no other file exists. Returns the ids."""
    with ContentStore.open(folder) as store:
        assert not store.damaged
        datasets = store.datasets()
        for cid, manifest in datasets:
            data = all_of(store, cid)
            assert len(data) == manifest.dataset_size_bytes
            blocks = [data[at : at + BLOCK_SIZE_BYTES] for at in range(0, len(data), BLOCK_SIZE_BYTES)]
            assert tree_cid([leaf_of(block) for block in blocks]) == manifest.tree
        trees = sorted({str(manifest.tree) for _, manifest in datasets})
        names = sorted(str(cid) for cid, _ in datasets)
        assert files_of(folder) == {"data": trees, "leaves": trees, "manifests": names, "incoming": []}
        used = sum(len(manifest.encode()) for _, manifest in datasets)
        used += BLOCK_SIZE_BYTES * sum({m.tree: m.block_count for _, m in datasets}.values())
        assert (store.space().used_size_bytes, store.space().reserved_size_bytes) == (used, 0)
    return set(names)


# --- a model -----------------------------------------------------------------------------------------


class Model(RuleBasedStateMachine):
    """Compare a store with a dictionary, with put, get, delete and reopen in any order."""

    folder: Path
    model: dict[Cid, bytes]

    @initialize()
    def begin(self) -> None:
        self.model = {}
        shutil.rmtree(self.folder, ignore_errors=True)
        self.store = ContentStore.open(self.folder)

    @rule(
        data=st.one_of(st.binary(min_size=1, max_size=20), st.sampled_from([b"a", b"a\0", b"a\0\0", b"\0"])),
        times=st.sampled_from([1, 1, 70_000]),
        name=NAMES,
        manifest_format=st.sampled_from(ManifestFormat),
        cut=st.integers(1, 200_000),
    )
    def put(self, data: bytes, times: int, name: str | None, manifest_format: ManifestFormat, cut: int) -> None:
        data = (data * times)[:300_000]
        chunks = [data[at : at + cut] for at in range(0, len(data), cut)] if len(data) // cut < 50 else [data]
        manifest = self.store.put(
            chunks, filename=name, mimetype="a/b" if name else None, manifest_format=manifest_format
        )
        assert manifest.dataset_size_bytes == len(data)
        self.model[manifest_cid(manifest)] = data

    @rule(data=st.data())
    def get(self, data: st.DataObject) -> None:
        if self.model:
            cid = data.draw(st.sampled_from(sorted(self.model)))
            start = data.draw(st.integers(0, len(self.model[cid])))
            assert all_of(self.store, cid, start) == self.model[cid][start:]

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        if self.model:
            cid = data.draw(st.sampled_from(sorted(self.model)))
            del self.model[cid]
            assert self.store.delete(cid)
            assert not self.store.delete(cid)
            with pytest.raises(NoSuchContentError):
                self.store.manifest(cid)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        assert assert_whole(self.folder) == {str(cid) for cid in self.model}
        self.store = ContentStore.open(self.folder)

    @invariant()
    def equals_the_model(self) -> None:
        if hasattr(self, "store"):
            assert [cid for cid, _ in self.store.datasets()] == sorted(self.model)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            for cid, data in self.model.items():
                assert all_of(self.store, cid) == data
            self.store.close()


@pytest.mark.thorough
def test_the_store_behaves_like_a_dictionary(tmp_path: Path) -> None:
    class InFolder(Model):
        folder = tmp_path / "store"

    run_state_machine_as_test(InFolder, settings=settings(max_examples=50, stateful_step_count=15, deadline=None))


# --- sharing and deleting ----------------------------------------------------------------------------


def test_equal_bytes_with_two_names_share_a_file(tmp_path: Path) -> None:
    data = bytes_of(1, 200_000)
    with ContentStore.open(tmp_path) as store:
        one, other = (manifest_cid(store.put([data], filename=name)) for name in ("a", "b"))
        assert one != other
        assert len(files_of(tmp_path)["data"]) == 1
        assert store.delete(one)
        assert all_of(store, other) == data
        assert store.delete(other)
        assert files_of(tmp_path) == {"data": [], "leaves": [], "manifests": [], "incoming": []}
        assert store.space().used_size_bytes == store.space().total_blocks == 0


def test_datasets_that_differ_in_trailing_zeros_are_read_unchanged(tmp_path: Path) -> None:
    # They have the same tree and therefore share a file.
    with ContentStore.open(tmp_path) as store:
        datas = [b"a", b"a" + bytes(99), b"a\0", b"a" + bytes(BLOCK_SIZE_BYTES - 1)]
        manifests = [store.put([data]) for data in datas]
        assert len({manifest.tree for manifest in manifests}) == 1
        assert [all_of(store, manifest_cid(manifest)) for manifest in manifests] == datas
        assert len(files_of(tmp_path)["data"]) == 1


def test_a_dataset_deleted_during_a_read_is_read_completely(tmp_path: Path) -> None:
    data = bytes_of(1, 3_000_000)
    with ContentStore.open(tmp_path) as store:
        cid = manifest_cid(store.put([data]))
        with store.reader(cid) as reader:
            parts = [reader.read()]
            store.delete(cid)
            while part := reader.read():
                parts.append(part)
        assert b"".join(parts) == data


def test_a_missing_dataset_raises_an_error(tmp_path: Path) -> None:
    with ContentStore.open(tmp_path) as store:
        for cid in (Cid(CODEC_BLOCK, bytes(32)), manifest_cid(store.put([b"x"]))):
            store.delete(cid)
            assert not store.exists(cid)
            with pytest.raises(NoSuchContentError, match="not found in the content store"):
                list(store.get(cid))


def test_rejected_datasets_leave_no_files(tmp_path: Path) -> None:
    def broken() -> Any:
        yield b"x" * 100_000
        raise RuntimeError("the source broke")

    with ContentStore.open(tmp_path) as store:
        with pytest.raises(ArchiveError, match="at least one byte"):
            store.put([])
        with pytest.raises(ArchiveError, match="invalid filename"):
            store.put([b"x"], filename="../x")
        with pytest.raises(RuntimeError):
            store.put(broken())
        with store.incoming() as incoming:
            incoming.write(b"x")
        with pytest.raises(ArchiveError, match="aborted"):
            incoming.write(b"y")
        other = store.put([b"other"])
        store.delete(manifest_cid(other))
        with store.incoming() as incoming:
            incoming.write(b"this")
            with pytest.raises(ArchiveError, match="wrong dataset"):
                incoming.commit_as(other)
    assert assert_whole(tmp_path) == set()


# --- damage ------------------------------------------------------------------------------------------


@pytest.mark.thorough
@given(data=st.data())
@settings(max_examples=40)
def test_a_damaged_file_raises_an_error_and_never_returns_wrong_bytes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damage")
    whole = bytes_of(1, 5 * BLOCK_SIZE_BYTES + 9)
    with ContentStore.open(folder) as store:
        cid = manifest_cid(store.put([whole], filename="a"))
        tree = str(store.manifest(cid).tree)
        path = folder / data.draw(st.sampled_from(["data", "leaves"])) / tree
        raw = bytearray(path.read_bytes())
        match data.draw(st.sampled_from(["flip", "cut", "gone", "longer"])):
            case "flip":
                raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
                path.write_bytes(raw)
            case "cut":
                path.write_bytes(raw[: data.draw(st.integers(0, len(raw) - 1))])
            case "gone":
                path.unlink()
            case "longer":
                path.write_bytes(raw + b"\1")
        got: list[bytes] = []
        with pytest.raises(ArchiveError, match="damaged"):
            got.extend(store.get(cid))
        assert whole.startswith(b"".join(got))
        store.put([whole], filename="a")  # a repeated put repairs it
        assert all_of(store, cid) == whole
    assert assert_whole(folder) == {str(cid)}


def test_a_dataset_with_a_damaged_manifest_is_kept_until_it_is_stored_again(tmp_path: Path) -> None:
    with ContentStore.open(tmp_path) as store:
        cids = [manifest_cid(store.put([b"%d" % i], filename="a")) for i in range(3)]
    for cid, content in zip(cids, (b"", b"\x0a\x02\x08\x01", None), strict=True):
        path = tmp_path / "manifests" / str(cid)
        path.write_bytes(
            content if content is not None else (tmp_path / "manifests" / str(cids[2])).read_bytes() + b"x"
        )
    with ContentStore.open(tmp_path) as store:
        assert store.damaged == set(cids)
        assert store.datasets() == []
        assert len(files_of(tmp_path)["data"]) == 3
        for cid in cids:
            with pytest.raises(ArchiveError, match=r"is damaged\. Delete it"):
                list(store.get(cid))
        assert manifest_cid(store.put([b"0"], filename="a")) == cids[0]
        assert all_of(store, cids[0]) == b"0"
        assert store.delete(cids[1])
        assert store.delete(cids[2])
    assert assert_whole(tmp_path) == {str(cids[0])}


def test_a_manifest_with_the_name_of_another_is_damaged(tmp_path: Path) -> None:
    with ContentStore.open(tmp_path) as store:
        one, other = (manifest_cid(store.put([data])) for data in (b"1", b"2"))
    manifests = tmp_path / "manifests"
    (manifests / str(one)).write_bytes((manifests / str(other)).read_bytes())
    with ContentStore.open(tmp_path) as store:
        assert store.damaged == {one}
        assert all_of(store, other) == b"2"


# --- space -------------------------------------------------------------------------------------------


def test_the_quota_also_applies_to_concurrent_uploads(tmp_path: Path) -> None:
    with ContentStore.open(tmp_path, quota_size_bytes=10 * BLOCK_SIZE_BYTES) as store:
        kept = manifest_cid(store.put([bytes_of(1, 4 * BLOCK_SIZE_BYTES)]))
        with pytest.raises(NoRoomError, match="Delete datasets, or raise the quota"):
            store.put([bytes_of(2, 7 * BLOCK_SIZE_BYTES)])
        with store.incoming() as one, store.incoming() as other:
            one.write(bytes_of(3, 3 * BLOCK_SIZE_BYTES))
            assert store.space().reserved_size_bytes == 3 * BLOCK_SIZE_BYTES
            with pytest.raises(NoRoomError):
                other.write(bytes_of(4, 3 * BLOCK_SIZE_BYTES))
        for seed in range(5):
            store.put([b"%d" % seed])  # each needs a block, regardless of its size
        with pytest.raises(NoRoomError):
            store.put([b"one more"])
        assert store.delete(kept)
        store.put([b"one more"])
        assert store.space().used_size_bytes <= store.quota_size_bytes
    assert len(assert_whole(tmp_path)) == 6


def test_an_aborted_upload_releases_its_space_once(tmp_path: Path) -> None:
    with ContentStore.open(tmp_path) as store, store.incoming() as one, store.incoming() as other:
        one.write(bytes_of(1, BLOCK_SIZE_BYTES))
        other.write(bytes_of(2, 3 * BLOCK_SIZE_BYTES))
        for _ in range(2):
            one.abort()
            assert store.space().reserved_size_bytes == 3 * BLOCK_SIZE_BYTES
        kept = manifest_cid(other.commit())
        for ended in (one, other):
            for call in (lambda ended=ended: ended.write(b"x"), ended.commit):
                with pytest.raises(ArchiveError, match="already committed or aborted"):
                    call()
        other.abort()
        assert store.space().reserved_size_bytes == 0
        assert [cid for cid, _ in store.datasets()] == [kept]


# --- disks that fail ---------------------------------------------------------------------------------


def test_an_upload_that_fills_the_disk_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is that of the write, although the pending leaves cannot be written either."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("no right to mount a file system here")
    monkeypatch.setattr(limits, "MIN_FREE_DISK_SIZE_BYTES", 0)

    def filling() -> Iterator[bytes]:
        yield bytes_of(1, BLOCK_SIZE_BYTES)
        (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free))
        yield bytes_of(2, BLOCK_SIZE_BYTES)

    try:
        with ContentStore.open(disk / "store") as store:
            with pytest.raises(NoRoomError, match="0 bytes free"):
                store.put(filling())
            assert files_of(disk / "store")["incoming"] == []
            (disk / "ballast").unlink()
            store.put([b"x"])
            assert store.space().reserved_size_bytes == 0
        assert len(assert_whole(disk / "store")) == 1
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_writer_that_fails_at_the_start_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="directory"):
        DatasetWriter(tmp_path / "data", tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_a_dataset_without_a_written_manifest_leaves_no_files(tmp_path: Path) -> None:
    """The data is kept if another manifest has the same bytes."""
    with ContentStore.open(tmp_path) as store:
        cids = [manifest_cid(store.put([b"payload"], filename=name)) for name in ("a", "b")]
        for cid in cids:
            store.delete(cid)
        (tmp_path / "manifests" / str(cids[0])).mkdir()  # a rename to an existing folder fails
        with pytest.raises(StorageError):
            store.put([b"payload"], filename="a")
        assert files_of(tmp_path) == {"data": [], "leaves": [], "manifests": [str(cids[0])], "incoming": []}
        store.put([b"payload"], filename="b")
        with pytest.raises(StorageError):
            store.put([b"payload"], filename="a")
        assert all_of(store, cids[1]) == b"payload"
        (tmp_path / "manifests" / str(cids[0])).rmdir()
    assert assert_whole(tmp_path) == {str(cids[1])}


def test_a_dataset_that_cannot_be_deleted_remains_available(tmp_path: Path) -> None:
    """The dataset's size is counted, and the deletion can be repeated."""
    with ContentStore.open(tmp_path) as store:
        cid = manifest_cid(store.put([b"payload"]))
        space = store.space()
        for kind in ("manifests", "data"):
            [name] = files_of(tmp_path)[kind]
            (tmp_path / kind / name).rename(tmp_path / "aside")
            (tmp_path / kind / name).mkdir()  # unlink fails on a folder
            with pytest.raises(StorageError):
                store.delete(cid)
            (tmp_path / kind / name).rmdir()
            (tmp_path / "aside").rename(tmp_path / kind / name)
            assert (store.exists(cid), store.space()) == (True, space)
            assert all_of(store, cid) == b"payload"
        assert store.delete(cid)
        assert store.space().used_size_bytes == 0
    assert assert_whole(tmp_path) == set()


def test_the_number_and_size_of_datasets_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_DATASETS, MAX_DATASET_SIZE_BYTES and MIN_FREE_DISK_SIZE_BYTES are changed so that tests reach them."""
    with ContentStore.open(tmp_path) as store:
        monkeypatch.setattr(limits, "MAX_DATASETS", 2)
        cids = [manifest_cid(store.put([b"x"], filename=name)) for name in "ab"]
        with pytest.raises(NoRoomError, match="the maximum"):
            store.put([b"x"], filename="c")
        assert manifest_cid(store.put([b"x"], filename="b")) == cids[1]  # it is already stored
        store.delete(cids[0])
        monkeypatch.setattr(limits, "MAX_DATASET_SIZE_BYTES", 100_000)
        with pytest.raises(NoRoomError, match="the maximum is 100000 bytes"):
            store.put([bytes(60_000), bytes(60_000)])
        monkeypatch.setattr(limits, "MIN_FREE_DISK_SIZE_BYTES", 2**62)
        with pytest.raises(NoRoomError, match="not enough disk space"):
            store.put([b"x"])
    assert assert_whole(tmp_path) == {str(cids[1])}


def test_the_memory_of_put_and_get_does_not_depend_on_the_size(tmp_path: Path) -> None:
    part = bytes_of(1, 1_000_000)

    def peak(parts: int) -> int:
        tracemalloc.start()
        cid = manifest_cid(store.put(part for _ in range(parts)))
        assert sum(map(len, store.get(cid))) == parts * len(part)
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    with ContentStore.open(tmp_path) as store:
        peak(2)
        assert peak(60) < peak(6) + 200_000


# --- one process at a time ---------------------------------------------------------------------------


def test_a_store_cannot_be_opened_twice_even_by_another_process(tmp_path: Path) -> None:
    with ContentStore.open(tmp_path):
        with pytest.raises(StoreLockedError, match="is open in process"):
            ContentStore.open(tmp_path)
        other = subprocess.run([sys.executable, CHILD, "put", tmp_path], capture_output=True, text=True, check=False)
        assert "StoreLockedError" in other.stderr
    assert assert_whole(tmp_path) == set()


def test_a_foreign_folder_is_rejected_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ArchiveError, match="it contains thesis"):
        ContentStore.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    store = tmp_path / "store"
    ContentStore.open(store).close()
    for header, message in (('{"format": 2}', "format 2"), ("[]", "invalid header"), ("\xff", "invalid header")):
        (store / "CONTENT").write_text(header, encoding="latin-1")
        with pytest.raises(ArchiveError, match=message):
            ContentStore.open(store)


def test_a_closed_store_raises_an_error(tmp_path: Path) -> None:
    store = ContentStore.open(tmp_path)
    with store.incoming() as incoming:
        incoming.write(b"x")
        store.close()
        with pytest.raises(ArchiveError, match="is closed"):
            incoming.commit()
    for call in (
        store.datasets,
        store.space,
        lambda: store.put([b"x"]),
        lambda: store.delete(Cid(CODEC_BLOCK, bytes(32))),
    ):
        with pytest.raises(ArchiveError, match="is closed"):
            call()
    assert assert_whole(tmp_path) == set()


def test_threads_store_read_and_delete_the_same_dataset_concurrently(tmp_path: Path) -> None:
    data, wrong = bytes_of(1, 300_000), []
    with ContentStore.open(tmp_path) as store:
        cid = manifest_cid(store.put([data]))

        def work() -> None:
            for _ in range(30):
                store.put([data])
                try:
                    if all_of(store, cid) != data:
                        wrong.append("other bytes")
                except NoSuchContentError:
                    pass
                except ArchiveError as error:
                    wrong.append(str(error))
                store.delete(cid)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert assert_whole(tmp_path) == set()


# --- kill -9 -----------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_kill_at_any_step_leaves_whole_datasets_and_all_acknowledged_ones(tmp_path: Path) -> None:
    start = tmp_path / "start"
    with ContentStore.open(start) as store:
        kept = str(manifest_cid(store.put([bytes_of(0, 100_000)])))
    done = subprocess.run([sys.executable, CHILD, "kill", start, tmp_path], capture_output=True, text=True, check=False)
    ended = [line.split() for line in done.stdout.splitlines()]
    assert [code for _, code in ended] == ["-9"] * (len(ended) - 1) + ["0"], done.stderr
    assert len(ended) > 50
    for point, _ in ended:
        record = tmp_path / f"{point}.said"
        sure, unsure = {kept}, set()
        for line in record.read_text().splitlines() if record.exists() else []:
            if line[0] == "+":
                sure.add(line[1:])
            elif line[0] == "-":  # the deletion is in progress, so it may exist or not
                sure.discard(line[1:])
                unsure.add(line[1:])
            else:
                unsure.discard(line[1:])
        found = assert_whole(tmp_path / point)
        assert sure <= found
        # At most one dataset is not acknowledged: the one that was being stored.
        assert len(found - sure - unsure) <= 1


def test_a_kill_at_a_random_time_leaves_a_valid_store(tmp_path: Path) -> None:
    acknowledged: set[str] = set()
    for seed in range(4):
        child = subprocess.Popen([sys.executable, CHILD, "put", tmp_path], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        acknowledged.add(child.stdout.readline().strip())
        threading.Event().wait(0.01 + 0.037 * seed)
        child.kill()
        acknowledged |= {line.strip() for line in child.stdout.readlines() if len(line) == 53}
        child.wait()
        child.stdout.close()
        assert acknowledged <= assert_whole(tmp_path)
