"""Archives that are created from exports on Spark: byte for byte those of a node with the same posts."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from archives import CONTROL, FIRST_MS, KEY, LATE_MS, archived, plan_of, some_weeks
from archives import store_of as store_of_weeks
from history import NOW_MS, histories
from hypothesis import given, settings
from hypothesis import strategies as st
from people import ANN, BOB
from reindex_tasks import plans, reports_of, shares_of, write_exports
from reindexing import small_shares, spark_session
from stores import public, scratch_folder, store_of

from cablestore import DRAFT8, CableStore, Dialect, Identity, Post, Text
from cablestore.archive.create import create_archives
from cablestore.archive.folder import ArchiveFolder
from cablestore.archive.format import archive, chunks, index
from cablestore.archive.format.period import WEEK_MS, weeks
from cablestore.archive.format.profile import PROFILES
from cablestore.archive.writer import ArchivePlan, CreateReport
from cablestore.cli import main
from cablestore.errors import ArchiveError, ExportError
from cablestore.export.manifest import Filters
from cablestore.files import folder_of
from cablestore.protocol.dialect import ARCHIVES_CHANNEL
from cablestore.reindex import archive_tasks, tasks
from cablestore.reindex.archive_tasks import WeeksJob
from cablestore.reindex.make_archives import History, MadeArchives, first_of_all, make_archives
from cablestore.reindex.prepare import read_sources
from cablestore.store.key_file import save_identity
from cablestore.store.options import system_clock_ms

COMMUNITY = CONTROL.public_key.hex()


def content(folder: ArchiveFolder) -> tuple[bytes | None, ...]:
    """Return the bytes of both files, None for one that is missing."""
    return tuple(path.read_bytes() if path.exists() else None for path in (folder.data_path, folder.index_path))


def exported(posts: Iterable[Post], folder: Path, dialect: Dialect) -> list[Path]:
    """Export a store of these posts."""
    with store_of_weeks(posts, dialect) as store:
        store.export(folder / "export", segment_size_bytes=20_000)
    return [folder / "export"]


def history_of(exports: list[Path], work: Path, plan: ArchivePlan, now_ms: int, random: Random) -> History:
    """Do the same as Spark: assign numbers, move blobs to their partitions in any order."""
    sources = read_sources(exports)
    job = WeeksJob(
        folder_of(work),
        plan.dialect,
        sources.inputs,
        random.randint(1, 5),
        plan.profile,
        tuple(weeks(0, now_ms)),
        plan.key,
    )
    blobs = defaultdict(list)
    for numbers in shares_of(range(len(job.inputs)), random):
        for batch in tasks.read(job, frozenset(range(job.partitions)))(iter([numbers])):
            for partition, blob in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                blobs[partition].append(blob)
    partitions = []
    for partition in random.sample(sorted(blobs), len(blobs)):
        columns = [pa.array([partition] * len(blobs[partition]), pa.int32()), pa.array(blobs[partition], pa.binary())]
        batch = pa.RecordBatch.from_arrays(columns, schema=tasks.BLOBS)
        partitions += reports_of(archive_tasks.derive(job)(iter([batch])))
    runs = [report["run"] for report in partitions]
    first_posts_ms = first_of_all(report["first_posts_ms"] for report in partitions)
    found = {index for report in partitions for index in report["weeks"]}
    reports: list[dict[str, Any]] = []
    for numbers in shares_of(found, random):
        reports += reports_of(archive_tasks.archive(job, runs, first_posts_ms)(iter([numbers])))
    return History(job, runs, first_posts_ms, sorted(reports, key=lambda report: int(report["week"])))


def write(history: History, folder: ArchiveFolder, plan: ArchivePlan) -> CreateReport:
    with folder.claimed():
        return history.write(folder, plan)


ways = st.builds(
    lambda profile, key: (profile, key), st.sampled_from(["rfc61", "status-go"]), st.sampled_from([None, KEY])
)
moments = st.sampled_from([NOW_MS, NOW_MS + WEEK_MS, NOW_MS + 2 * WEEK_MS, 10**12 + WEEK_MS])


@settings(max_examples=40)
@given(histories(), plans, st.randoms(use_true_random=False), ways, moments)
def test_tasks_create_the_archives_of_a_store_with_all_posts(
    history: tuple[Dialect, list[Post]], plan: Any, random: Random, way: tuple[str, bytes | None], now_ms: int
) -> None:
    """A post, its deletion, and its skeleton may each be in any export."""
    dialect, posts = history[0], public(history[1])
    how = plan_of(*way, dialect)
    with scratch_folder() as folder, store_of(dialect, posts) as store:
        due, made = ArchiveFolder(folder / "due"), ArchiveFolder(folder / "made")
        expected = create_archives(store, due, how, now_ms)
        found = history_of(write_exports(dialect, posts, plan, folder, random), folder / "job", how, now_ms, random)
        assert write(found, made, how) == expected
        assert content(made) == content(due)
        assert write(found, made, how).archives == 0
        assert content(made) == content(due)


@pytest.mark.thorough
@settings(max_examples=15)
@given(ways, st.integers(0, 6), st.frozensets(st.integers(0, 149), max_size=20), st.randoms(use_true_random=False))
def test_a_job_continues_the_archives_of_a_node(
    way: tuple[str, bytes | None], weeks_before: int, late: frozenset[int], random: Random
) -> None:
    """A node also continues the archives of the job. Posts that arrive late for their week get a separate archive."""
    how, posts = plan_of(*way), some_weeks()
    early = [post for at, post in enumerate(posts) if at not in late]
    before_ms = FIRST_MS + weeks_before * WEEK_MS
    with scratch_folder() as folder:
        node, other = (archived(store_of_weeks(early), folder / name, how, before_ms) for name in ("node", "other"))
        exports = exported(posts, folder, how.dialect)
        expected = create_archives(store_of_weeks(posts), node, how, LATE_MS)
        found = history_of(exports, folder / "job", how, LATE_MS, random)
        assert write(found, other, how) == expected
        assert content(other) == content(node)
        assert create_archives(store_of_weeks(posts), other, how, LATE_MS).archives == 0
        assert content(other) == content(node)


def test_large_weeks_are_split_and_announcements_are_omitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A week beyond MAX_ARCHIVE_SIZE_BYTES has several archives. Announcements are in none."""
    monkeypatch.setattr(chunks.chunks, "__defaults__", (3_000,))
    posts = [ANN.text("default", "." * 900, at=FIRST_MS + number) for number in range(10)]
    posts += [BOB.text("other", "." * 3_500, at=FIRST_MS), BOB.text(ARCHIVES_CHANNEL, "archives 1 x", at=FIRST_MS)]
    early = ANN.text("default", "gone within its week", at=FIRST_MS)  # in its first millisecond
    posts += [early, ANN.delete(early, at=FIRST_MS + 20)]
    how = plan_of("status-go")
    exports = exported(posts, tmp_path, how.dialect)
    due, made = ArchiveFolder(tmp_path / "due"), ArchiveFolder(tmp_path / "made")
    expected = create_archives(store_of_weeks(posts), due, how, LATE_MS)
    found = history_of(exports, tmp_path / "job", how, LATE_MS, Random(1))
    assert write(found, made, how) == expected
    assert content(made) == content(due)
    assert (expected.archives, expected.oversize) == (5, [posts[10].hash])
    assert write(found, made, how) == create_archives(store_of_weeks(posts), due, how, LATE_MS)


def test_a_job_omits_the_same_oversize_parts_as_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_STORED_ARCHIVE_SIZE_BYTES applies to skeletons of deleted posts, MAX_INDEX_SIZE_BYTES to deletions."""
    links = [tuple(bytes([n, m % 256]) * 16 for m in range(1_000 * n)) for n in range(9)]
    gone = [ANN.text("default", f"gone {n}", at=FIRST_MS + n, links=links[n]) for n in range(9)]
    posts = [*some_weeks(), *gone, *(ANN.delete(*gone[n:], at=FIRST_MS + 2 * WEEK_MS + n) for n in (0, 3))]
    how = plan_of("status-go")
    exports = exported(posts, tmp_path, how.dialect)
    monkeypatch.setattr(archive, "MAX_STORED_ARCHIVE_SIZE_BYTES", 1_000_000)
    monkeypatch.setattr(index, "MAX_INDEX_SIZE_BYTES", 4_000)
    due, made = ArchiveFolder(tmp_path / "due"), ArchiveFolder(tmp_path / "made")
    expected = create_archives(store_of_weeks(posts), due, how, LATE_MS)
    assert expected.tombstones_left_out
    assert expected.deletions_left_out
    found = history_of(exports, tmp_path / "job", how, LATE_MS, Random(1))
    assert write(found, made, how) == expected
    assert content(made) == content(due)


def test_the_output_of_workers_is_checked_before_it_is_signed(tmp_path: Path) -> None:
    how = plan_of()
    exports = exported(some_weeks(), tmp_path, how.dialect)
    found = history_of(exports, tmp_path / "job", how, LATE_MS, Random(1))
    file = tmp_path / "job" / found.reports[2]["file"]
    whole = file.read_bytes()
    for damaged in (whole[:100] + b"!" + whole[101:], whole[:-1], b""):
        file.write_bytes(damaged)
        folder = ArchiveFolder(tmp_path / str(len(damaged)))
        with pytest.raises(ExportError, match=f"{file} is damaged"):
            write(found, folder, how)
        assert not folder.index_path.exists()


def test_a_job_is_distinguished_from_others_and_reveals_no_key(tmp_path: Path) -> None:
    exports = exported(some_weeks(DRAFT8), tmp_path, DRAFT8)
    inputs, periods = read_sources(exports).inputs, tuple(weeks(0, LATE_MS))
    jobs = [
        WeeksJob(folder_of(tmp_path), DRAFT8, inputs, 3, PROFILES["rfc61"], periods, KEY),
        WeeksJob(folder_of(tmp_path), DRAFT8, inputs, 3, PROFILES["rfc61"], periods, None),
        WeeksJob(folder_of(tmp_path), DRAFT8, inputs, 3, PROFILES["status-go"], periods, KEY),
        WeeksJob(folder_of(tmp_path), DRAFT8, inputs, 3, PROFILES["rfc61"], periods[:-1], KEY),
        WeeksJob(folder_of(tmp_path), DRAFT8, inputs[1:], 3, PROFILES["rfc61"], periods, KEY),
        WeeksJob(folder_of(tmp_path), DRAFT8, inputs, 4, PROFILES["rfc61"], periods, KEY),
    ]
    assert len({job.fingerprint() for job in jobs}) == len(jobs)
    assert repr(KEY) not in repr(jobs[0])


def store_that_hides() -> CableStore:
    """Return a control node's store that hid some messages in public, and one privately."""
    posts = some_weeks()
    store = store_of_weeks(posts)
    texts = [post.hash for post in posts if isinstance(post.body, Text)]
    store.moderation.hide(posts=texts[::7])
    store.moderation.hide(posts=texts[1:2], private=True)
    return store


@pytest.mark.thorough
def test_an_export_without_hidden_posts_has_the_archives_of_a_node_that_omits_them(tmp_path: Path) -> None:
    how = plan_of()
    with store_that_hides() as store:
        due, all_of = ArchiveFolder(tmp_path / "due"), ArchiveFolder(tmp_path / "all")
        expected = create_archives(store, due, how, LATE_MS, leaves_out_hidden=True)
        assert create_archives(store, all_of, how, LATE_MS).posts > expected.posts + 10
        store.export(tmp_path / "export", filters=Filters(without_hidden=True), segment_size_bytes=20_000)
    found = history_of([tmp_path / "export"], tmp_path / "job", how, LATE_MS, Random(1))
    made = ArchiveFolder(tmp_path / "made")
    assert write(found, made, how) == expected
    assert content(made) == content(due)


@pytest.mark.thorough
def test_the_command_rejects_exports_that_may_contain_hidden_posts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_identity(CONTROL, tmp_path / "key")
    with store_that_hides() as store:
        store.export(tmp_path / "good", filters=Filters(without_hidden=True))
        for name, filters in (("all", None), ("some", Filters(channels=frozenset({"default"})))):
            store.export(tmp_path / name, filters=filters)
            options = (tmp_path / "good", tmp_path / name, "--identity", tmp_path / "key", "--leave-out-hidden")
            said = run(capsys, "archive", "make", tmp_path / "archives", *options, status=2)
            assert f"{tmp_path / name} may contain messages that its store's owner hid" in said
            assert "export --leave-out-hidden" in said
    assert not (tmp_path / "archives").exists()


# --- on Spark --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with spark_session(tmp_path_factory.mktemp("spark")), small_shares():
        yield


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path, status: int = 0) -> Any:
    """Run a command. Return the last line of JSON that it prints, or its error if it fails."""
    with pytest.raises(SystemExit) as exit_:
        main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    assert exit_.value.code == status, said.err
    return said.err if status else json.loads(said.out.splitlines()[-1])


def shared_out(posts: Iterable[Post], folder: Path) -> list[Path]:
    """Export two stores that each have most of the posts."""
    random = Random(3)
    shares: tuple[list[Post], list[Post]] = ([], [])
    for post in posts:
        for share in random.choice([shares, shares, shares[:1], shares[1:]]):
            share.append(post)
    for number, share in enumerate(shares):
        with store_of_weeks(share) as store:
            store.export(folder / f"export-{number}", segment_size_bytes=40_000)
    return [folder / "export-0", folder / "export-1"]


@pytest.mark.thorough
@pytest.mark.usefixtures("spark")
def test_the_command_has_the_result_of_archive_create(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    posts = some_weeks(weeks=6, per_week=100)
    exports = shared_out(posts, tmp_path)
    save_identity(CONTROL, tmp_path / "key")
    signer = ("--identity", tmp_path / "key", "--json")
    due = archived(store_of_weeks(posts), tmp_path / "due", plan_of("status-go", KEY))
    options = (*signer, "--profile", "status-go", "--cabal-key", KEY.hex())
    said = run(capsys, "archive", "make", tmp_path / "archives", *exports, *options)
    made = ArchiveFolder(tmp_path / "archives" / COMMUNITY)
    assert content(made) == content(due)
    assert (said["archives"], said["community"]) == (6, COMMUNITY)
    assert said["counts"]["duplicates"] > 100
    assert {path.name for path in (tmp_path / "archives").iterdir()} == {COMMUNITY}
    assert {path.name for path in made.path.iterdir()} == {"data", "index"}

    before = content(made)
    run(capsys, "archive", "make", tmp_path / "archives", *exports, *signer, status=2)
    assert content(made) == before, "archives with other parameters were published"
    segment = exports[0] / "posts-000000.seg"
    segment.write_bytes(segment.read_bytes()[:-1])
    assert str(segment) in run(capsys, "archive", "make", tmp_path / "none", *exports, *options, status=2)
    assert not (tmp_path / "none" / COMMUNITY / "index").exists()


@pytest.mark.thorough
@pytest.mark.usefixtures("spark")
def test_the_command_omits_hidden_posts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_identity(CONTROL, tmp_path / "key")
    with store_that_hides() as store:
        store.export(tmp_path / "export", filters=Filters(without_hidden=True))
        due = ArchiveFolder(tmp_path / "due")
        create_archives(store, due, plan_of(), system_clock_ms(), leaves_out_hidden=True)
    options = (tmp_path / "export", "--identity", tmp_path / "key", "--leave-out-hidden", "--json")
    run(capsys, "archive", "make", tmp_path / "archives", *options)
    assert content(ArchiveFolder(tmp_path / "archives" / COMMUNITY)) == content(due)


@pytest.mark.thorough
@pytest.mark.usefixtures("spark")
def test_an_interrupted_job_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results of workers are kept, and the publication is continued."""
    posts = some_weeks(weeks=6, per_week=50)
    exports = shared_out(posts, tmp_path)
    how = plan_of()
    due = archived(store_of_weeks(posts), tmp_path / "due", how)
    made = ArchiveFolder(tmp_path / "made")

    def again() -> MadeArchives:
        return make_archives(exports, made, how.profile, CONTROL, LATE_MS)

    with monkeypatch.context() as patch:
        patch.setattr(ArchiveFolder, "write_index", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            again()
    assert content(made)[1] is None
    finished = again()
    assert content(made) == content(due)
    assert finished.ran.seconds.keys() == {"inspect"}, "finished work was repeated"
    assert not (tmp_path / "made.making").exists()
    assert again().created.archives == 0
    with pytest.raises(ArchiveError, match="not signed by the control node"):
        make_archives(exports, made, how.profile, Identity.generate(), LATE_MS)
    assert content(made) == content(due)
