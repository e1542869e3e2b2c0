"""Creation of archives: the same history results in the same bytes, and published bytes do not change."""

from __future__ import annotations

import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from archives import CONTROL, FIRST_MS, KEY, LATE_MS, WEEKS, archived, files, plan_of, some_weeks, store_of
from hypothesis import given, settings
from hypothesis import strategies as st
from people import ANN, CYD

from cablestore import DRAFT8, LEGACY, CableStore, Delete, Dialect, Identity, StoreOptions
from cablestore.archive import writer
from cablestore.archive.create import create_archives
from cablestore.archive.folder import ArchiveFolder
from cablestore.archive.format import archive, index
from cablestore.archive.format.archive import decode_archive
from cablestore.archive.format.index import VerifiedIndex
from cablestore.archive.format.period import WEEK_MS
from cablestore.archive.writer import ArchivePlan
from cablestore.cli import main
from cablestore.errors import ArchiveError, StorageError
from cablestore.index.tombstone import Tombstone
from cablestore.limits import PIECE_SIZE_BYTES
from cablestore.protocol.dialect import ARCHIVES_CHANNEL

WAYS = pytest.mark.parametrize("key", [None, KEY], ids=["public", "sealed"])
PROFILES = pytest.mark.parametrize("profile", ["rfc61", "status-go"])


def index_of(plan: ArchivePlan, folder: ArchiveFolder) -> VerifiedIndex:
    found = plan.verified(folder)
    assert found is not None
    return found


@PROFILES
@WAYS
@pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=lambda dialect: dialect.name)
def test_the_same_history_results_in_the_same_bytes(
    tmp_path: Path, profile: str, key: bytes | None, dialect: Dialect
) -> None:
    """The order in which posts arrived does not matter; stores on disk and in memory are equal."""
    posts = list(some_weeks(dialect))
    plan = plan_of(profile, key, dialect)
    one = archived(store_of(posts, dialect), tmp_path / "one", plan)
    random.Random(3).shuffle(posts)
    with CableStore.open(
        tmp_path / "store", dialect=dialect, identity=CONTROL, options=StoreOptions(clock=lambda: LATE_MS)
    ) as store:
        store.ingest([post.raw for post in posts], verify=False)
        two = archived(store, tmp_path / "two", plan)
    assert files(one) == files(two)
    entries = index_of(plan, one).index.entries
    assert [entry.period.from_ms for entry in entries] == [FIRST_MS + week * WEEK_MS for week in range(WEEKS)]
    assert one.data_size_bytes() % PIECE_SIZE_BYTES == 0
    assert {path.name for path in one.path.iterdir()} == {"data", "index"}


@pytest.mark.thorough
@pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=lambda dialect: dialect.name)
def test_several_processes_create_the_same_bytes_as_one(tmp_path: Path, dialect: Dialect) -> None:
    """The history includes late posts and deletions, and more weeks than are in progress at once."""
    plan = plan_of(key=KEY, dialect=dialect)
    posts = list(some_weeks(dialect, weeks=8))
    store = store_of(posts[::2], dialect)
    alone, shared = ArchiveFolder(tmp_path / "alone"), ArchiveFolder(tmp_path / "shared")
    for more in ([], posts):
        store.ingest([post.raw for post in more], verify=False)
        made = [
            create_archives(store, folder, plan, LATE_MS, processes=processes)
            for folder, processes in ((alone, 1), (shared, 2))
        ]
        assert made[0] == made[1]
        assert made[0].archives > 0
        assert files(alone) == files(shared)


@settings(max_examples=25)
@given(st.lists(st.integers(0, WEEKS * WEEK_MS + 1), max_size=6), st.sampled_from([None, KEY]))
def test_archives_do_not_depend_on_how_often_they_are_created(offsets_ms: list[int], key: bytes | None) -> None:
    """Archives may be created each week, or all missed weeks together. Existing bytes stay the start of the file."""
    plan = plan_of(key=key)
    store = store_of(some_weeks())
    with TemporaryDirectory() as scratch:
        at_once = archived(store, Path(scratch) / "at once", plan)
        step_by_step = ArchiveFolder(Path(scratch) / "steps")
        before = b""
        for offset_ms in [*sorted(offsets_ms), LATE_MS - FIRST_MS]:
            create_archives(store, step_by_step, plan, FIRST_MS + offset_ms)
            data = step_by_step.data_path.read_bytes() if before or step_by_step.data_size_bytes() else b""
            assert data.startswith(before)
            before = data
        assert files(step_by_step) == files(at_once)
        assert create_archives(store, at_once, plan, LATE_MS).archives == 0


def test_the_current_week_is_not_archived(tmp_path: Path) -> None:
    plan = plan_of()
    folder = archived(store_of(some_weeks()), tmp_path, plan, FIRST_MS + 2 * WEEK_MS + 1)
    assert len(index_of(plan, folder).index.entries) == 2
    assert create_archives(store_of(()), ArchiveFolder(tmp_path / "none"), plan, LATE_MS).archives == 0
    assert not (tmp_path / "none" / "index").exists()


@PROFILES
@WAYS
def test_late_posts_are_written_to_a_separate_archive(tmp_path: Path, profile: str, key: bytes | None) -> None:
    late = [CYD.text("default", f"late {n}", at=FIRST_MS + WEEK_MS + n) for n in range(3)]
    plan = plan_of(profile, key)
    store = store_of(some_weeks())
    folder = archived(store, tmp_path, plan)
    data, _ = files(folder)
    store.ingest([post.raw for post in late])
    for expected in (3, 0, 0):
        assert create_archives(store, folder, plan, LATE_MS).late_posts == expected
    assert files(folder)[0].startswith(data)
    verified = index_of(plan, folder)
    week = [entry for entry in verified.index.entries if entry.period.from_ms == FIRST_MS + WEEK_MS]
    assert [verified.commitments[entry.archive_id].num_posts for entry in week][1:] == [3]


def test_deletions_of_earlier_weeks_are_in_the_index(tmp_path: Path) -> None:
    text, other = ANN.text("default", "gone later", at=FIRST_MS), ANN.text("default", "gone at once", at=FIRST_MS + 1)
    soon, late = ANN.delete(other, at=FIRST_MS + 2), ANN.delete(text, at=FIRST_MS + 3 * WEEK_MS)
    plan = plan_of()
    store = store_of([text, other])
    folder = archived(store, tmp_path, plan, FIRST_MS + WEEK_MS)
    data, _ = files(folder)
    store.ingest([soon.raw, late.raw])
    create_archives(store, folder, plan, FIRST_MS + 2 * WEEK_MS)
    assert index_of(plan, folder).deletions == (late.raw,)
    assert files(folder)[0].startswith(data), "its bytes were published"


@WAYS
def test_the_largest_deletions_are_omitted_if_the_index_would_be_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: bytes | None
) -> None:
    """MAX_INDEX_SIZE_BYTES. Deletions of one member do not prevent archives; deletions of others stay in the index."""
    texts = [ANN.text("default", f"gone {n}", at=FIRST_MS + n) for n in range(7)]
    deletions = [
        ANN.post(Delete((text.hash, *(bytes([n, m]) * 16 for m in range(10 * n)))), at=FIRST_MS + WEEK_MS + n)
        for n, text in enumerate(texts)
    ]
    plan = plan_of(key=key)
    store = store_of([*some_weeks(), *texts, *deletions])
    report = create_archives(store, ArchiveFolder(tmp_path / "whole"), plan, LATE_MS)
    assert report.deletions_left_out == []
    whole = files(ArchiveFolder(tmp_path / "whole"))
    for room_bytes, left_out in ((len(whole[1]), 0), (len(whole[1]) - 100, 1), (len(whole[1]) - 3_000, 2)):
        monkeypatch.setattr(index, "MAX_INDEX_SIZE_BYTES", room_bytes)
        folder = ArchiveFolder(tmp_path / str(room_bytes))
        expected = sorted(post.hash for post in deletions[len(deletions) - left_out :])
        for _ in range(2):
            report = create_archives(store, folder, plan, LATE_MS)
            assert report.deletions_left_out == expected
        kept = {*index_of(plan, folder).deletions}
        assert kept.isdisjoint(post.raw for post in deletions[len(deletions) - left_out :])
        assert kept.issuperset(post.raw for post in deletions[: len(deletions) - left_out])
        assert files(folder)[0] == whole[0]
        assert (files(folder) == whole) == (left_out == 0)


@PROFILES
@WAYS
def test_the_largest_tombstones_are_omitted_if_the_archive_would_be_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str, key: bytes | None
) -> None:
    """MAX_STORED_ARCHIVE_SIZE_BYTES: tombstones may be much larger than the post that deletes their targets."""
    links = [tuple(bytes([n, m % 256]) * 16 for m in range(1_000 * n)) for n in range(9)]
    texts = [ANN.text("default", f"gone {n}", at=FIRST_MS + n, links=links[n]) for n in range(9)]
    posts = [*texts, ANN.text("default", "stays", at=FIRST_MS), ANN.delete(*texts, at=FIRST_MS + 2 * WEEK_MS)]
    plan = plan_of(profile, key)
    store = store_of(posts)
    assert create_archives(store, ArchiveFolder(tmp_path / "whole"), plan, LATE_MS).tombstones_left_out == []
    whole = files(ArchiveFolder(tmp_path / "whole"))
    most = index_of(plan, ArchiveFolder(tmp_path / "whole")).index.entries[-1].size_bytes
    for pieces, left_out in ((0, 0), (1, 2), (4, 3), (most // PIECE_SIZE_BYTES - 1, 9)):
        room_bytes = most - pieces * PIECE_SIZE_BYTES
        monkeypatch.setattr(archive, "MAX_STORED_ARCHIVE_SIZE_BYTES", room_bytes)
        folder = ArchiveFolder(tmp_path / str(pieces))
        report = create_archives(store, folder, plan, LATE_MS)
        assert report.tombstones_left_out == [post.hash for post in texts[9 - left_out :]]
        entry = index_of(plan, folder).index.entries[-1]
        assert entry.size_bytes <= room_bytes
        items = decode_archive(plan.profile, folder.stored(entry), entry, key)
        assert [each.target for each in items if isinstance(each, Tombstone)] == [
            post.hash for post in texts[: 9 - left_out]
        ]
        assert (files(folder) == whole) == (left_out == 0)


def test_the_command_reports_omitted_posts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Standard error has a line for each; --json lists their hashes."""
    texts = [ANN.text("default", f"gone {n}", at=FIRST_MS + n, links=(bytes(32),) * 5_000) for n in range(2)]
    deletion = ANN.delete(*texts, at=FIRST_MS + WEEK_MS)
    CableStore.open(tmp_path / "store", identity=CONTROL).close()
    with CableStore.open(tmp_path / "store", options=StoreOptions(clock=lambda: LATE_MS)) as store:
        store.ingest([post.raw for post in (*some_weeks(), *texts, deletion)])
    monkeypatch.setattr(archive, "MAX_STORED_ARCHIVE_SIZE_BYTES", 300_000)
    monkeypatch.setattr(index, "MAX_INDEX_SIZE_BYTES", 2_500)
    outputs: list[Any] = []
    for options in ((), ("--json",)):
        with pytest.raises(SystemExit) as exit_:
            main(
                [
                    "archive",
                    "create",
                    str(tmp_path / f"archives{len(outputs)}"),
                    "-s",
                    str(tmp_path / "store"),
                    *options,
                ]
            )
        assert exit_.value.code == 0
        outputs.append(capsys.readouterr())
    report = json.loads(outputs[1].out)
    assert sorted(report["tombstones_left_out"]) == sorted(post.hash.hex() for post in texts)
    assert len(report["deletions_left_out"]) > 1
    errors = " ".join(outputs[0].err.split())
    for line in (
        "time and links of 2 deleted posts",
        f"left out the largest {len(report['deletions_left_out'])} post/deletes for posts of earlier weeks",
    ):
        assert errors.count(line) == 1


def test_local_only_posts_and_announcements_are_not_archived(tmp_path: Path) -> None:
    """Announcements are also excluded, as they are not part of a history."""
    announcement = ANN.text(ARCHIVES_CHANNEL, "archives 1 magnet:?", at=FIRST_MS)
    message = ANN.text("default", "hello", at=FIRST_MS)
    plan = plan_of("status-go")
    folder = archived(store_of([announcement, message]), tmp_path, plan)
    assert message.raw in files(folder)[0]
    assert announcement.raw not in files(folder)[0]


@WAYS
def test_a_folder_of_archives_with_other_settings_is_not_changed(tmp_path: Path, key: bytes | None) -> None:
    store = store_of(some_weeks())
    folder = archived(store, tmp_path, plan_of(key=key))
    before = files(folder)
    other_key = None if key else KEY
    others = [
        plan_of("status-go", key),
        plan_of(key=other_key),
        ArchivePlan(plan_of().profile, Identity.generate(), LEGACY, key),
    ]
    for other in others:
        with pytest.raises(ArchiveError):
            create_archives(store, folder, other, LATE_MS)
    with folder.claimed(), pytest.raises(ArchiveError, match="another process"):
        create_archives(store, folder, plan_of(key=key), LATE_MS)
    folder.data_path.write_bytes(before[0][:-PIECE_SIZE_BYTES])
    with pytest.raises(ArchiveError, match="only"):
        create_archives(store, folder, plan_of(key=key), LATE_MS)
    assert folder.index_path.read_bytes() == before[1]


@pytest.mark.parametrize("name", ["append", "write_index"])
@pytest.mark.parametrize("fails_at", range(WEEKS))
def test_published_archives_survive_a_disk_error_at_any_step(tmp_path: Path, name: str, fails_at: int) -> None:
    """The next call continues and truncates an unfinished archive."""
    plan = plan_of(key=KEY)
    store = store_of(some_weeks())
    whole = files(archived(store, tmp_path / "whole", plan))
    folder = ArchiveFolder(tmp_path / "broken")
    steps = iter(range(100))
    method = getattr(ArchiveFolder, name)

    def failing(folder: ArchiveFolder, content: Any, *place: int) -> None:
        if next(steps) < fails_at:
            method(folder, content, *place)
            return
        if name == "append":
            method(folder, [stored[: len(stored) // 2] for stored in content], *place)
        raise StorageError("the disk failed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "_WRITE_SIZE_BYTES", 1)
        patch.setattr(ArchiveFolder, name, failing)
        with pytest.raises(StorageError):
            create_archives(store, folder, plan, LATE_MS)
    verified = plan.verified(folder)
    assert len(verified.index.entries if verified else ()) == fails_at
    create_archives(store, folder, plan, LATE_MS)
    assert files(folder) == whole
