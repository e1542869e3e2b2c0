"""Damaged files: any damage of any format is detected. The next run writes the file again or reports the repair."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from archives import CONTROL, archived, plan_of, some_weeks, store_of
from backing_up import opened, rows_of
from exporting import SMALL, files_of, some_posts
from history import AUTHORS, NOW_MS
from people import raws

from cablestore import LEGACY, CableStore
from cablestore.archive.content.store import ContentStore
from cablestore.archive.folder import ArchiveFolder
from cablestore.archive.local import are_whole, community_folder
from cablestore.archive.publish import Publisher
from cablestore.backup import backup, restore, verify_backup
from cablestore.errors import ArchiveError, BackupError, CableStoreError, ExportError
from cablestore.export import verify_export
from cablestore.sds import causal_log

Damage = Callable[[bytes], bytes | None]
SHORT: dict[str, Damage] = {
    "missing": lambda _: None,
    "empty": lambda _: b"",
    "half": lambda data: data[: len(data) // 2],
    "a byte longer": lambda data: data + b"\x01",
}
"""Damages that change the size."""
DAMAGES: dict[str, Damage] = SHORT | {
    "flipped": lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 4]) + data[len(data) // 2 + 1 :]
}


@contextmanager
def damaged(path: Path, damage: Damage) -> Iterator[None]:
    """Damage a file, and restore it afterwards, even if it was replaced."""
    whole = path.read_bytes()
    found = damage(whole)
    path.unlink()
    if found is not None:
        path.write_bytes(found)
    try:
        yield
    finally:
        path.write_bytes(whole)


# --- backups --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def backed_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("backup")
    with opened(folder / "store") as store, causal_log(store) as log:
        store.ingest(raws(*some_posts()))
        post = store.post("default", "x")
        store.moderation.hide(posts=[post.hash], private=True)
        store.local.set_draft("default", "y")
        log.channel("room", "ann").send(b"one", NOW_MS)
        backup(store, folder / "backup", with_key=True)
    return folder


KINDS = ["posts", "arrivals", "rows", "causal-logs", "backup.json", "identity"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_to_a_backup_is_detected_and_repaired(backed_up: Path, tmp_path: Path, kind: str, damage: str) -> None:
    out = tmp_path / "backup"
    shutil.copytree(backed_up / "backup", out)
    file = next(out.glob(f"{kind}*"))
    with opened(backed_up / "store") as store, damaged(file, DAMAGES[damage]):
        if kind == "backup.json":
            with pytest.raises(CableStoreError, match=r"backup\.json"):
                verify_backup(out)
            file.unlink(missing_ok=True)  # as the message suggests
            backup(store, out, with_key=True)
        elif kind == "identity" and damage == "a byte longer":
            assert verify_backup(out)[1][0].file == file.name
            assert backup(store, out).mended == 1  # an earlier run requested the key
        else:
            assert [problem.file for problem in verify_backup(out)[1]] == [file.name]
            if kind != "identity":
                with pytest.raises(BackupError, match="--salvage"):
                    restore(out, tmp_path / "refused")
            report = backup(store, out, with_key=kind == "identity", full=damage == "flipped" and kind != "identity")
            assert report.mended == (damage in SHORT or kind == "identity") - (
                kind == "identity" and damage == "missing"
            )
        assert verify_backup(out)[1] == []
        assert restore(out, tmp_path / "restored").is_complete
        assert rows_of(tmp_path / "restored") == rows_of(store)


@pytest.mark.parametrize("kind", KINDS[:-2])
@pytest.mark.parametrize("damage", ["empty", "flipped"])
def test_a_salvaged_backup_results_in_a_consistent_store(
    backed_up: Path, tmp_path: Path, kind: str, damage: str
) -> None:
    out = tmp_path / "backup"
    shutil.copytree(backed_up / "backup", out)
    file = next(out.glob(f"{kind}*"))
    with damaged(file, DAMAGES[damage]):
        report = restore(out, tmp_path / "restored", salvage=True)
    assert [problem.file for problem in report.problems] == [file.name]
    assert (report.is_authentic, report.is_complete) == (True, False)
    assert (report.lost_posts > 0, report.posts == 0) == (kind == "posts", kind == "posts")
    assert (report.causal_log_rows == 0) is (kind == "causal-logs")
    with opened(tmp_path / "restored") as store, opened(backed_up / "store") as whole:
        assert store.check(signatures=True).is_clean
        store.post("default", "more")
        if kind in {"arrivals", "causal-logs"}:
            assert list(store.local.drafts()) == list(whole.local.drafts()) != []


# --- exports --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    with CableStore.open(folder / "store", identity=AUTHORS[0]) as store:
        store.ingest(raws(*some_posts()))
        store.export(folder / "export", **SMALL)
    return folder


@pytest.mark.parametrize("name", ["posts-000001.seg", "tombstones-000000.seg", "manifest.json", "arrivals.json"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_to_an_export_is_detected(exported: Path, name: str, damage: str) -> None:
    with damaged(exported / "export" / name, DAMAGES[damage]):
        is_noticed = name == "arrivals.json" and damage == "missing"
        try:
            is_noticed |= not verify_export(exported / "export", signatures=True).is_clean
        except ExportError:
            is_noticed = True
        assert is_noticed or name == "arrivals.json"
        with CableStore.in_memory() as store:
            if name == "arrivals.json":
                store.import_exports([exported / "export"])  # it does not need the file
                return
            with pytest.raises(ExportError, match=name):
                store.import_exports([exported / "export"])
            assert damage == "flipped" or not list(store.channels())


class StopError(Exception):
    """Stops an export."""


@pytest.mark.parametrize("glob", ["run-*", "posts-*", "unfinished.json"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_to_an_unfinished_export_is_detected(exported: Path, tmp_path: Path, glob: str, damage: str) -> None:
    """The resumed export equals an uninterrupted one, or names the damaged file. Only verify finds a flipped bit."""
    out = tmp_path / "export"
    seen: list[int] = []

    def stop(posts: int) -> None:
        seen.append(posts)
        if (out / "run-000000").exists() if glob == "run-*" else (out / "posts-000002.seg").exists():
            raise StopError

    with CableStore.open(exported / "store", identity=AUTHORS[0]) as store:
        with pytest.raises(StopError):
            store.export(out, progress=stop, **SMALL)
        with damaged(min(out.glob(glob)), DAMAGES[damage]):
            if glob == "run-*" and damage == "flipped":
                with pytest.raises(ExportError, match="run-000000 is damaged"):
                    store.export(out, **SMALL)
                return
            if glob == "unfinished.json" and damage == "missing":
                with pytest.raises(ExportError, match="Choose a new or empty folder"):
                    store.export(out, **SMALL)
                return
            store.export(out, **SMALL)
            is_equal = files_of(out) == files_of(exported / "export")
            assert is_equal is verify_export(out).is_clean
            assert is_equal or (glob, damage) == ("posts-*", "flipped")


# --- content stores and archives ------------------------------------------------------------------


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archives")
    with store_of(some_weeks()) as store:
        archived(store, community_folder(folder, CONTROL.public_key), plan_of("rfc61", None))
    return folder


def files_of_community(folder: Path) -> ArchiveFolder:
    return ArchiveFolder(community_folder(folder, CONTROL.public_key))


@pytest.mark.parametrize("kind", ["data", "leaves", "manifests"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_to_a_content_store_is_detected_and_repaired(
    archives: Path, tmp_path: Path, kind: str, damage: str
) -> None:
    """All listed content can be served, and publishing sends content again that cannot be served."""
    place = tmp_path / "content"
    publisher = Publisher(CONTROL, LEGACY)
    with ContentStore.open(place) as store:
        first = publisher.publish(files_of_community(archives), store)
        whole = dict(store.datasets())
    with damaged(min((place / kind).iterdir()), DAMAGES[damage]), ContentStore.open(place) as store:
        intact = {cid for cid in whole if cid not in store.damaged and store.is_intact(cid)}
        assert damage == "flipped" or {cid for cid, _ in store.datasets()} <= intact
        assert all(store.exists(cid) for cid, _ in store.datasets())
        assert len(intact) == len(whole) - 1 or (kind == "data" and damage not in {"missing", "empty", "a byte longer"})
        second = publisher.publish(files_of_community(archives), store)
        assert second.index_cid == first.index_cid
        assert all(store.is_intact(cid) for cid in whole)
        assert dict(store.datasets()) == whole
        assert store.incomplete() == []


@pytest.mark.parametrize("name", ["data", "index"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_to_the_folder_of_a_community_is_detected(
    archives: Path, tmp_path: Path, name: str, damage: str
) -> None:
    folder = tmp_path / "archives"
    shutil.copytree(archives, folder)
    community = CONTROL.public_key.hex()
    assert are_whole(folder, community, None)
    with damaged(folder / community / name, DAMAGES[damage]):
        is_complete = False
        with suppress(ArchiveError):
            is_complete = are_whole(folder, community, None)
        # Bytes of `data` after the last archive are of an unfinished one, and are truncated before the next append.
        assert not is_complete or (name == "data" and "longer" in damage)
