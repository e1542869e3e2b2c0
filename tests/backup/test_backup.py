"""A backup has the content of its store after any changes between two backups, and a restored store equals it."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from backing_up import hashes_in, hashes_of, opened, require_equal, rows_of
from history import AUTHORS, NOW_MS, long_history
from people import ANN, BOB, raws
from stores import scratch_folder

from cablestore import DRAFT8, LEGACY, CableStore, Delete, Dialect, limits
from cablestore.backup import BackupReport, backup, read_backup, restore, verify_backup
from cablestore.errors import ArgumentError, BackupError, OpenError, StoreLockedError
from cablestore.files import folder_of
from cablestore.index.header import RESTORING, peek
from cablestore.index.packing import pack
from cablestore.sds import causal_log
from cablestore.store.closed import ClosedStore


def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BACKUP_POSTS_SIZE_BYTES", 1_000)
    monkeypatch.setattr(limits, "BACKUP_ROWS_SIZE_BYTES", 300)


# --- equality -------------------------------------------------------------------------------------


def change(store: CableStore, rng: random.Random, pending: list[bytes], scratch: Path) -> None:
    """Change a store in one of the ways that a backup must include."""
    held = hashes_of(store)
    match rng.randrange(9):
        case 0 | 1 | 2:
            number = rng.randrange(1, 40)
            store.ingest(pending[:number])
            del pending[:number]
        case 3:
            store.write(Delete((rng.randbytes(32),)))
            with suppress(ArgumentError):  # the history has actions of the user, who may have dropped the channel
                store.write(Delete((store.post("default", f"{rng.random()}").hash,)))
        case 4 if held:
            store.discard(rng.sample(held, min(3, len(held))))
        case 5 if held:
            with suppress(ArgumentError):  # it is not a text
                store.moderation.hide(posts=[rng.choice(held)], private=rng.random() < 0.7)
        case 6:
            store.moderation.drop(users=[AUTHORS[rng.randrange(1, 3)].public_key], private=True)
            if rng.random() < 0.5:
                store.moderation.sweep()
        case 7:
            store.moderation.undrop(users=[AUTHORS[rng.randrange(1, 3)].public_key], private=True)
        case 8:  # skeletons, which are not in the arrival log
            gone = ANN.text("default", f"{rng.random()}", at=NOW_MS - 5)
            with CableStore.in_memory(dialect=store.dialect, identity=ANN.identity) as other:
                if store.dialect == LEGACY:
                    other.ingest(raws(gone, ANN.delete(gone, at=NOW_MS - 4)))
                out = scratch / f"export-{rng.random()}"
                other.export(out)
            store.import_exports([out])


def change_local_rows(store: CableStore, rng: random.Random) -> None:
    """Change zero to two rows, often rows that were changed before."""
    if rng.random() < 0.5:
        store.local.set_draft(f"{rng.randrange(3)}", f"{rng.random()}")
    if rng.random() < 0.5:
        store.mark_read("default")


def run_history(seed: int, dialect: Dialect, folder: Path) -> int:
    rng = random.Random(seed)
    path, out = folder / "store", folder / "backup"
    pending = raws(*long_history(rng, 120, dialect))
    backups = 0
    for _ in range(4):  # opened again each time
        with opened(path, dialect) as store:
            for _ in range(rng.randrange(1, 5)):
                change(store, rng, pending, folder)
                change_local_rows(store, rng)
                if rng.random() < 0.3:
                    backup(store, out)
                    backups += 1
            backup(store, out)
            require_equal(store, out, folder / f"restored-{rng.random()}")
        if rng.random() < 0.2:
            ClosedStore(path, identity=AUTHORS[0]).rebuild()
        elif rng.random() < 0.3:
            backup(path, out, identity=AUTHORS[0])
    return backups


@pytest.mark.thorough(
    "0-draft8",
    "0-legacy",
    "1-draft8",
    "1-legacy",
    "2-draft8",
    "2-legacy",
    "3-draft8",
    "4-draft8",
    "4-legacy",
    "5-draft8",
    "5-legacy",
)
@pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("seed", range(6))
def test_backups_between_any_changes_equal_the_store(
    monkeypatch: pytest.MonkeyPatch, seed: int, dialect: Dialect
) -> None:
    small_pieces(monkeypatch)
    with scratch_folder() as folder:
        run_history(seed, dialect, folder)


@pytest.mark.soak
def test_backups_between_changes_equal_the_store_in_many_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch)
    backups = 0
    for seed in range(100, 400):
        with scratch_folder() as folder:
            backups += run_history(seed, LEGACY if seed % 3 else DRAFT8, folder)
    assert backups > 100


def test_causal_logs_are_restored(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store, causal_log(store) as log:
        log.channel("room", "ann").send(b"one", NOW_MS)
        backup(store, tmp_path / "backup")
        log.channel("room", "ann").send(b"two", NOW_MS + 1)
        backup(store, tmp_path / "backup")  # with the log open
        with log.rows() as rows:
            expected = list(rows)
    assert backup(tmp_path / "store", tmp_path / "backup", identity=AUTHORS[0]).written == 0
    restore(tmp_path / "backup", tmp_path / "restored", identity=AUTHORS[0])
    with opened(tmp_path / "restored") as store, causal_log(store) as log:
        with log.rows() as rows:
            assert list(rows) == expected
        assert [message.content for message in log.channel("room", "ann").log()] == [b"one", b"two"]


# --- written data ---------------------------------------------------------------------------------


def posts_written(store: CableStore, out: Path, *, full: bool = False) -> tuple[BackupReport, int]:
    before = {path.name for path in out.glob("posts-*")} if out.exists() else set()
    report = backup(store, out, full=full)
    return report, len({path.name for path in out.glob("posts-*")} - before)


def test_a_second_backup_writes_only_new_posts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BACKUP_POSTS_SIZE_BYTES", 2_000)
    out = tmp_path / "backup"
    posts = [ANN.text("default", f"{number} {'x' * 80}") for number in range(200)]
    with opened(tmp_path / "store") as store:
        store.ingest(raws(*posts))
        full, pieces = posts_written(store, out)
        assert (full.is_full, full.posts, pieces > 8) == (True, 200, True)
        again, pieces = posts_written(store, out)
        assert (again.is_full, again.posts, again.written, pieces) == (False, 200, 0, 0)
        store.ingest(raws(ANN.text("default", "new")))
        new, pieces = posts_written(store, out)
        assert (new.is_full, new.posts, new.written, pieces) == (False, 201, 2, 1)
        store.ingest(raws(ANN.delete(posts[7])))
        gone, pieces = posts_written(store, out)
        assert (gone.is_full, gone.posts, pieces) == (False, 201, 2)  # the deletion, and the piece it was in
        assert posts[7].hash not in hashes_in(out)
        again, pieces = posts_written(store, out, full=True)
        assert again.is_full
        assert again.written == len(list(out.glob("*.seg")))


def test_a_backup_after_local_changes_is_incremental(tmp_path: Path) -> None:
    """A draft or a mark that changes again removes its earlier entry from the arrival log."""
    out = tmp_path / "backup"
    with opened(tmp_path / "store") as store:
        store.local.set_draft("default", "before any post")
        backup(store, out)
        store.local.set_draft("default", "still before")
        assert not backup(store, out).is_full
        store.ingest(raws(*(ANN.text("default", f"{number} {'x' * 80}") for number in range(200))))
        store.post("default", "joins too")
        whole = backup(store, out, full=True)
        for number in range(3):
            store.local.set_draft("default", f"{number}")
            assert not backup(store, out).is_full
            store.post("default", f"{number}")
            store.mark_read("default")
            store.mark_read("other")
            report = backup(store, out)
            assert (report.is_full, report.posts) == (False, whole.posts + 1 + number)
            assert report.written_size_bytes < whole.written_size_bytes // 4
        require_equal(store, out, tmp_path / "restored")


@pytest.mark.parametrize("loses", ["deletes", "discards"])
def test_a_backup_after_a_deleted_or_discarded_post_is_incremental(tmp_path: Path, loses: str) -> None:
    out = tmp_path / "backup"
    with opened(tmp_path / "store") as store:
        posts = [store.post("default", f"{number}") for number in range(20)]
        whole = backup(store, out)
        if loses == "deletes":
            store.delete([posts[3].hash])
        else:
            store.discard([posts[3].hash])
        report = backup(store, out)
        assert (whole.is_full, report.is_full) == (True, False)
        assert report.posts == whole.posts - (loses == "discards")
        assert posts[3].hash not in hashes_in(out)
        require_equal(store, out, tmp_path / "restored")


def as_of_0_12(out: Path) -> None:
    """Change the manifest of a backup to format 1, which has no time, no sizes and no signature."""
    manifest = read_backup(folder_of(out))
    pieces = tuple(replace(piece, file_size_bytes=None) for piece in manifest.pieces)
    old = replace(manifest, format=1, made_ms=0, pieces=pieces, signed_by=None, signature=None)
    (out / "backup.json").write_bytes(old.encode())
    assert read_backup(folder_of(out)) == old


def test_a_backup_of_0_12_is_restored_and_replaced(tmp_path: Path) -> None:
    out = tmp_path / "backup"
    with opened(tmp_path / "store") as store:
        store.post("default", "x")
        store.local.set_draft("default", "y")
        backup(store, out)
        as_of_0_12(out)
        assert verify_backup(out)[1] == []
        report = restore(out, tmp_path / "posts", identity=AUTHORS[0])
        assert (report.is_complete, report.is_authentic, report.left_out_rows > 0) == (True, False, True)
        assert restore(out, tmp_path / "all", identity=AUTHORS[0], unverified=True).left_out_rows == 0
        assert rows_of(tmp_path / "all") == rows_of(store)
        with opened(tmp_path / "posts") as restored:
            assert restored.dump_digest() == store.dump_digest()
            assert list(restored.local.drafts()) == []
            assert restored.check(signatures=True).is_clean
        store.post("default", "z")
        assert backup(store, out).is_full
        require_equal(store, out, tmp_path / "restored")


@pytest.mark.parametrize("has_posts", [False, True])
def test_a_backup_copies_the_arrival_log_of_a_restored_store(tmp_path: Path, has_posts: bool) -> None:
    """The older copy may have the posts of the backup, while its local rows and their entries differ."""
    path, out = tmp_path / "store", tmp_path / "backup"
    with opened(path) as store:
        store.post("default", "x")
    shutil.copytree(path, tmp_path / "copy")
    with opened(path) as store:
        for number in range(5):
            store.local.set_draft(f"{number}", "lost")
        backup(store, out)
    shutil.rmtree(path)
    (tmp_path / "copy").rename(path)
    with opened(path) as store:
        if has_posts:
            store.ingest(raws(*(BOB.text("default", f"{number}") for number in range(3))))
        for number in range(7):
            store.local.set_draft(f"{number}", "here")
        assert backup(store, out).is_full is has_posts
        require_equal(store, out, tmp_path / "restored")


def test_a_store_that_was_reset_by_one_local_change_is_backed_up_completely(tmp_path: Path) -> None:
    path, out = tmp_path / "store", tmp_path / "backup"
    with opened(path) as store:
        store.post("default", "x")
    shutil.copytree(path, tmp_path / "copy")
    with opened(path) as store:
        store.local.set_draft("default", "lost")
        backup(store, out)
    with opened(tmp_path / "copy") as store:
        assert backup(store, out).is_full
        require_equal(store, out, tmp_path / "restored")


def test_all_posts_are_written_again_after_many_backups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_BACKUPS_SINCE_FULL", 2)
    with opened(tmp_path / "store") as store:
        found = []
        for number in range(5):
            store.ingest(raws(ANN.text("default", f"{number}")))
            found.append(backup(store, tmp_path / "backup").is_full)
        assert found == [True, False, False, True, False]
        assert hashes_in(tmp_path / "backup") == hashes_of(store)


def test_all_posts_are_written_again_after_many_arrivals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_BACKUP_ARRIVALS", 3)
    with opened(tmp_path / "store") as store:
        found = []
        for number in (1, 3, 4):
            store.ingest(raws(*(ANN.text("default", f"{number} {n}") for n in range(number))))
            found.append(backup(store, tmp_path / "backup").is_full)
        assert found == [True, False, True]


def test_all_posts_are_written_again_if_new_pieces_grow_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is twice the size of the last full backup, and one piece more."""
    out = tmp_path / "backup"
    with opened(tmp_path / "store") as store:
        store.ingest(raws(ANN.text("default", "x")))
        backup(store, out)
        store.ingest(raws(*(ANN.text("default", f"{number}") for number in range(3))))
        backup(store, out)
        last, found = read_backup(folder_of(out)), []
        for more_bytes in (0, -1):
            over_bytes = last.size_bytes("posts") - 2 * last.full_size_bytes
            monkeypatch.setattr(limits, "BACKUP_POSTS_SIZE_BYTES", over_bytes + more_bytes)
            found.append(backup(store, out).is_full)
        assert found == [False, True]


def test_a_store_reset_to_an_older_copy_is_backed_up_completely(tmp_path: Path) -> None:
    """An older copy of the folder has the same id, and then its arrival log continues differently."""
    path, out = tmp_path / "store", tmp_path / "backup"
    with opened(path) as store:
        store.ingest(raws(ANN.text("default", "old")))
    shutil.copytree(path, tmp_path / "copy")
    with opened(path) as store:
        store.ingest(raws(ANN.text("default", "one")))
        backup(store, out)
    shutil.rmtree(path)
    (tmp_path / "copy").rename(path)
    with opened(path) as store:
        store.ingest(raws(BOB.text("default", "two"), BOB.text("default", "three")))
        assert backup(store, out).is_full
        require_equal(store, out, tmp_path / "restored")


def test_a_lost_file_is_written_again(tmp_path: Path) -> None:
    out = tmp_path / "backup"
    with opened(tmp_path / "store") as store:
        store.ingest(raws(ANN.text("default", "x")))
        backup(store, out)
        lost = list(out.glob("*.seg"))
        for path in lost:
            path.unlink()
        assert sorted(problem.file for problem in verify_backup(out)[1]) == sorted(path.name for path in lost) != []
        with pytest.raises(BackupError, match="is missing"):
            restore(out, tmp_path / "restored")
        assert not any((tmp_path / "restored").glob("[!l]*"))
        backup(store, out)
        require_equal(store, out, tmp_path / "restored")


def test_damage_is_detected_and_a_full_backup_repairs_it(tmp_path: Path) -> None:
    out = tmp_path / "backup"
    with opened(tmp_path / "store") as store:
        store.ingest(raws(ANN.text("default", "x" * 500)))
        backup(store, out)
        [posts] = out.glob("posts-*")
        whole = posts.read_bytes()
        for at in range(0, len(whole), 7):
            posts.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            _, problems = verify_backup(out)
            assert not problems or (problems[0].file == posts.name and "backup --full" in problems[0].what)
            if problems:
                with pytest.raises(BackupError, match=posts.name):
                    restore(out, tmp_path / "restored")
        posts.write_bytes(whole[:-1])
        assert len(verify_backup(out)[1]) == 1
        backup(store, out, full=True)
        require_equal(store, out, tmp_path / "restored")
    manifest = (out / "backup.json").read_bytes()
    (out / "backup.json").write_bytes(manifest.replace(b'"sealed": 0', b'"sealed": 1'))
    with pytest.raises(BackupError, match=r"backup\.json is damaged: its BLAKE3 checksum does not match"):
        verify_backup(out)


def test_a_row_that_exceeds_the_limit_of_readers_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "store") as store:
        post = ANN.text("default", "x" * 500)
        store.ingest([post.raw])
        size_bytes = len(pack([post.raw]))
        monkeypatch.setattr(limits, "MAX_SEGMENT_BLOCK_SIZE_BYTES", size_bytes - 1)
        with pytest.raises(BackupError, match=f"are too large: the maximum in a backup is {size_bytes - 1} bytes"):
            backup(store, tmp_path / "backup")
        monkeypatch.setattr(limits, "MAX_SEGMENT_BLOCK_SIZE_BYTES", size_bytes)
        backup(store, tmp_path / "backup")
        assert verify_backup(tmp_path / "backup")[1] == []


# --- rejections -----------------------------------------------------------------------------------


def test_a_restored_store_has_another_id_and_generation(tmp_path: Path) -> None:
    """The arrival log of the restored store continues separately, so its positions must not fit the old store."""
    with opened(tmp_path / "store") as store:
        store.ingest(raws(ANN.text("default", "x")))
        backup(store, tmp_path / "backup")
    names = []
    for name in ("one", "two"):
        restore(tmp_path / "backup", tmp_path / name)
        header = peek(tmp_path / name)
        assert header is not None
        names += [(header.store_id, header.generation)]
    old = peek(tmp_path / "store")
    assert old is not None
    assert (
        len({store_id for store_id, _ in names} | {old.store_id})
        == len({name for _, name in names} | {old.generation})
        == 3
    )
    ClosedStore(tmp_path / "one").rebuild()
    with opened(tmp_path / "one") as store, pytest.raises(BackupError, match="the backup of another store"):
        backup(store, tmp_path / "backup")


def test_existing_files_are_not_changed(tmp_path: Path) -> None:
    out = tmp_path / "backup"
    with opened(tmp_path / "store") as store:
        store.post("default", "x")
        store.export(tmp_path / "export")
        (tmp_path / "file").touch()
        (tmp_path / "keys").mkdir()
        (tmp_path / "keys" / "identity").write_text("a key that is nowhere else")
        for folder in ("export", "store", "file", "keys"):
            with pytest.raises(BackupError, match=r"Choose a new or empty folder"):
                backup(store, tmp_path / folder)
        assert (tmp_path / "keys" / "identity").read_text() == "a key that is nowhere else"
        with pytest.raises(BackupError, match="no backup found"):
            verify_backup(tmp_path / "nothing")
        assert not (tmp_path / "nothing").exists()
        with pytest.raises(BackupError, match="is not a finished backup"):
            restore(tmp_path / "export", tmp_path / "restored")
        backup(store, out)
        before = rows_of(store)
        with pytest.raises(BackupError, match="is already a store"):
            restore(out, tmp_path / "store")
        assert rows_of(store) == before
        with pytest.raises(StoreLockedError, match="open in this process"):
            backup(tmp_path / "store", out)
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "notes.txt").touch()
        for target in ("other", "file"):
            with pytest.raises(BackupError, match=r"does not overwrite files|is a file"):
                restore(out, tmp_path / target)
    with CableStore.in_memory() as store, pytest.raises(BackupError, match="Export the store"):
        backup(store, tmp_path / "memory")


def test_a_concurrent_backup_of_the_same_folder_is_rejected(tmp_path: Path) -> None:
    out = tmp_path / "backup"
    with opened(tmp_path / "store") as store:
        store.post("default", "x")
        messages: list[str] = []

        def meanwhile(_: int) -> None:
            with pytest.raises(BackupError) as error:
                backup(store, out)
            with pytest.raises(BackupError):
                verify_backup(out)
            messages.append(str(error.value))

        backup(store, out, progress=meanwhile)
        assert messages
        assert all("in use by another process. Wait until it ends" in text for text in messages)
        backup(store, out)


# --- interruption ---------------------------------------------------------------------------------


def test_ctrl_c_keeps_the_last_backup(tmp_path: Path) -> None:
    out = tmp_path / "backup"

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with opened(tmp_path / "store") as store:
        with pytest.raises(KeyboardInterrupt):
            backup(store, out, progress=interrupt)
        with pytest.raises(BackupError, match="not a finished backup"):
            verify_backup(out)
        store.post("default", "x")
        backup(store, out)
        before = (out / "backup.json").read_bytes()
        store.post("default", "y")
        with pytest.raises(KeyboardInterrupt):
            backup(store, out, progress=interrupt)
        assert (out / "backup.json").read_bytes() == before
        assert verify_backup(out)[1] == []
        backup(store, out)
        with pytest.raises(KeyboardInterrupt):
            restore(out, tmp_path / "restored", identity=AUTHORS[0], progress=interrupt)
        require_equal(store, out, tmp_path / "restored")


def test_a_partially_restored_folder_is_not_a_store(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        store.post("default", "x")
        backup(store, tmp_path / "backup")
        half = tmp_path / "half"
        (half / RESTORING / "generation-000001").mkdir(parents=True)
        shutil.copytree(tmp_path / "store", half / "generation-123456789012")
        for create in (False, True):
            with pytest.raises(OpenError, match=r"was interrupted\. Run `cablestore restore` again"):
                CableStore.open(half, create=create)
        with pytest.raises(OpenError, match="was interrupted"):
            peek(half)
        require_equal(store, tmp_path / "backup", half)
    assert not (half / RESTORING).exists()
    (half / "STORE").unlink()
    (half / RESTORING).mkdir()
    (half / "notes.txt").touch()  # a file of the user
    with pytest.raises(BackupError, match="does not overwrite files"):
        restore(tmp_path / "backup", half)
