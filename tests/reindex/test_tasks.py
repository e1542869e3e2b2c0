"""The tasks of the reindexing job, without Spark: from any exports they derive the rows of a store of all posts."""

from __future__ import annotations

import json
import pickle
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from claims import Claims, claims
from exporting import forge
from faulty_proxy import faulty_proxy
from history import AUTHORS, CHANNELS, TIMES_MS, Model, histories
from hypothesis import given, settings
from hypothesis import strategies as st
from people import ANN, BOB
from reindex_tasks import Plan, in_dump, job_over, plans, reports_of, rows_of, run_tasks, write_exports
from s3 import S3Server, environment_of
from stores import public, scratch_folder, store_of

from cablestore import LEGACY, Dialect, Post, Tombstone, Verdict, decode_post
from cablestore.errors import ArchiveError, CableStoreError, ExportError, ReindexError, StorageError
from cablestore.export.manifest import read_posts
from cablestore.export.writer import ExportWriter, post_record
from cablestore.files import Location, ObjectFolder, folder_of, remote
from cablestore.index.local import PREFIX as LOCAL_PREFIX
from cablestore.index.meta import SIZES_KEY, decode_sizes
from cablestore.index.runs import into_buckets, read_bucket, write_run
from cablestore.index.tombstone import Skeleton
from cablestore.index.view import Catalog
from cablestore.protocol.body import Block
from cablestore.reindex import prepare, tasks
from cablestore.reindex.job import Drops, ReindexJob, claim_folder
from cablestore.reindex.prepare import read_sources
from cablestore.views import CATALOG


@contextmanager
def job_of(
    exports: Sequence[Location],
    folder: Location,
    plan: Plan,
    drops: Drops = Drops(),  # noqa: B008 - frozen
    views: frozenset[str] = frozenset(),
    catalog: Catalog = CATALOG,
) -> Iterator[ReindexJob]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "MAX_BUCKET_SIZE_BYTES", plan.bucket_size_bytes)
        patch.setattr(tasks, "_BUFFERED_SIZE_BYTES", plan.buffered_size_bytes)
        sources = read_sources(exports)
        job = job_over(sources.inputs, folder, sources.dialect, drops=drops, views=views, catalog=catalog)
        yield replace(job, partitions=plan.partitions)


@pytest.mark.thorough
@settings(max_examples=settings().max_examples // 2)
@given(histories(), plans, st.randoms(use_true_random=False))
def test_tasks_over_several_exports_create_the_rows_of_a_store_with_all_posts(
    history: tuple[Dialect, list[Post]], plan: Plan, random: Random
) -> None:
    dialect, posts = history[0], public(history[1])
    with scratch_folder() as folder, store_of(dialect, posts) as store:
        exports = write_exports(dialect, posts, plan, folder, random)
        with job_of(exports, folder / "job", plan) as job:
            rows, reports, sizes = run_tasks(job, random)
        assert in_dump(rows) == rows_of(store)
        assert sizes == decode_sizes(dict(store.dump()).get(SIZES_KEY))
        assert_counts(reports, exports, Model(posts))


@settings(max_examples=settings().max_examples // 4)
@given(claims(), plans, st.randoms(use_true_random=False))
def test_claims_of_exports_about_deleted_posts_count_as_in_an_import(case: Claims, plan: Plan, random: Random) -> None:
    """There are true and forged skeletons, of live, dead and unknown posts. Tombstones and local rows are the same."""
    with scratch_folder() as folder, store_of(case.dialect, []) as store:
        exports = case.write(folder)
        with job_of(exports, folder / "job", plan) as job:
            rows, _, sizes = run_tasks(job, random)
        store.import_exports(exports)
        with store.snapshot() as snapshot:
            seen = list(snapshot.reader.prefix(LOCAL_PREFIX))
        assert rows == sorted([*rows_of(store), *seen])
        assert sizes == decode_sizes(dict(store.dump()).get(SIZES_KEY))


def test_deleted_posts_are_counted(tmp_path: Path) -> None:
    """The count includes posts that another export has, but not those that another author deletes."""
    posts = [ANN.text("default", str(number)) for number in range(5)]
    unknown = ANN.text("default", "in no export")
    deletions = [ANN.delete(*posts[:2]), BOB.delete(posts[3]), ANN.delete(unknown)]
    exports = [forge(tmp_path / "a", posts, []), forge(tmp_path / "b", [*posts[:3], *deletions], [])]
    with job_of(exports, tmp_path / "job", ONE) as job, store_of(LEGACY, [*posts, *deletions]) as store:
        rows, reports, _ = run_tasks(job, Random("deleted"))
        assert in_dump(rows) == rows_of(store)
    assert_counts(reports, exports, Model([*posts, *deletions]))
    counts = [report.get("counts", {}).get("tombstones: of an unknown post", 0) for report in reports]
    assert sum(counts) == 1


def test_a_tombstone_without_its_deletion_is_omitted_and_counted(tmp_path: Path) -> None:
    """A tombstone is unsigned, so accepting it would delete a post against its author's will."""
    post = ANN.text("default", "I live")
    made_up = [Tombstone(post.hash, ANN.key, 1, bytes([7]) * 32, skeleton) for skeleton in (None, Skeleton.of(post))]
    for number, stone in enumerate(made_up):
        export = forge(tmp_path / f"export-{number}", [post], [stone])
        with job_of([export], tmp_path / f"job-{number}", ONE) as job, store_of(LEGACY, [post]) as store:
            rows, reports, _ = run_tasks(job, Random("left out"))
            assert rows == rows_of(store)
        left_out = sum(report.get("counts", {}).get(LEFT_OUT, 0) for report in reports)
        assert left_out == number, "a tombstone without its target was read"


LEFT_OUT = "tombstones: without their post/delete, left out"


def assert_counts(reports: list[dict[str, Any]], exports: list[Path], model: Model) -> None:
    """Check that the numbers in the job's report are those of the model."""
    live: dict[str, int] = defaultdict(int)
    counts: dict[str, int] = defaultdict(int)
    for report in reports:
        for total, key in ((live, "posts"), (counts, "counts")):
            found = report.get(key, {})
            assert isinstance(found, dict)
            for name, number in found.items():
                total[name] += number
    assert live == model.counts()
    read = [
        post.hash
        for manifest in read_sources(exports).manifests
        for segment in manifest.post_segments
        for block in read_posts(manifest.folder, segment)
        for post in (decode_post(raw, manifest.dialect) for raw in block)
    ]
    assert counts["posts read"] == len(read)
    assert counts["duplicates"] == len(read) - len(set(read))
    assert counts["deleted"] == len(set(read) & model.dead.keys())
    assert counts["tombstones: of a dead post"] == len(model.dead)
    assert not counts["malformed"]
    assert not counts["local-only"]


drops_chosen = st.builds(
    Drops,
    authors=st.frozensets(st.sampled_from([author.public_key for author in AUTHORS]), max_size=2),
    channels=st.frozensets(st.sampled_from(CHANNELS), max_size=4),
    before_ms=st.sampled_from((0, 0, *TIMES_MS)),
)


@pytest.mark.thorough
@settings(max_examples=settings().max_examples // 2)
@given(histories(), plans, st.randoms(use_true_random=False), drops_chosen)
def test_dropping_posts_has_the_result_of_discarding_them(
    history: tuple[Dialect, list[Post]], plan: Plan, random: Random, drops: Drops
) -> None:
    dialect, posts = history[0], public(history[1])
    drops = replace(drops, channels=frozenset(map(dialect.channel_id, drops.channels)))
    with scratch_folder() as folder, store_of(dialect, posts) as store:
        exports = write_exports(dialect, posts, plan, folder, random)
        with job_of(exports, folder / "job", plan, drops) as job:
            rows, reports, sizes = run_tasks(job, random)
        chosen = [post for post in posts if drops.reason(post) is not None]
        assert all(is_to_drop(post, drops) == (post in chosen) for post in posts)
        outcomes = store.discard([post.hash for post in chosen])
        assert {outcome.verdict for outcome in outcomes} <= {Verdict.DISCARDED, Verdict.UNKNOWN}
        assert in_dump(rows) == rows_of(store)
        assert sizes == decode_sizes(dict(store.dump()).get(SIZES_KEY))
        gone = frozenset(post.hash for post in chosen)
        live: dict[str, int] = defaultdict(int)
        for report in reports:
            for name, number in dict(report.get("posts", {})).items():
                live[name] += number
        assert live == Model(posts, gone).counts()
    assert bool(drops) == bool(drops.authors or drops.channels or drops.before_ms)


def is_to_drop(post: Post, drops: Drops) -> bool:
    is_named = post.author in drops.authors or post.channel in drops.channels or post.timestamp_ms < drops.before_ms
    return is_named and post.type_name != "delete"


@pytest.mark.thorough
@given(
    histories(),
    plans,
    st.randoms(use_true_random=False),
    st.frozensets(st.sampled_from([view.name for view in CATALOG.views]), min_size=1, max_size=3),
)
@settings(max_examples=settings().max_examples // 2)
def test_single_views_have_the_rows_of_all_views(
    history: tuple[Dialect, list[Post]], plan: Plan, random: Random, views: frozenset[str]
) -> None:
    dialect, posts = history[0], public(history[1])
    views = CATALOG.with_dependencies(views)
    with scratch_folder() as folder, store_of(dialect, posts) as store:
        exports = write_exports(dialect, posts, plan, folder, random)
        with job_of(exports, folder / "job", plan, views=views) as job:
            rows, _, _ = run_tasks(job, random)
        due = (views | {"reverse"}) - {"data"}  # posts do not change
        assert rows == [row for row in rows_of(store) if CATALOG.view_of(row[0]) in due]


# --- hostile and damaged input ---------------------------------------------------------------------

ONE = Plan((frozenset(),), (True,), 3, 400, 700, 2**25)


def test_malformed_and_local_only_posts_are_counted_and_omitted(tmp_path: Path) -> None:
    good = [ANN.text("default", str(number)) for number in range(20)]
    private = BOB.post(Block("", 1, (ANN.key,), 0, 1))
    assert private.is_local_only
    writer = ExportWriter(tmp_path / "export", LEGACY, CATALOG.versions, segment_size_bytes=700)
    items = [(post.timestamp_ms, post.hash, post.raw, post.type) for post in (*good, private)]
    garbage = [
        (1, bytes([number]) * 32, raw, 0) for number, raw in enumerate((b"", b"x", good[0].raw[:-1], bytes(300)))
    ]
    deletion = ANN.delete(good[0]).raw[:-1]
    writer.add_records([post_record(*item)] for item in sorted([*items, *garbage, (2, b"z" * 32, deletion, 1)]))
    writer.finish()
    with job_of([tmp_path / "export"], tmp_path / "job", ONE) as job, store_of(LEGACY, good) as store:
        rows, reports, _ = run_tasks(job, Random(1))
        assert rows == rows_of(store)
    counts = [dict(report["counts"]) for report in reports if "counts" in report]
    assert sum(count.get("malformed", 0) for count in counts) == len(garbage) + 1
    assert sum(count.get("local-only", 0) for count in counts) == 1


@pytest.fixture
def export(place: ObjectFolder) -> ObjectFolder:
    posts = [(ANN, BOB)[number % 2].text(f"channel {number % 3}", f"{number}") for number in range(60)]
    with store_of(LEGACY, [*posts, ANN.delete(posts[0]), BOB.delete(posts[0], posts[1])]) as store:
        store.export(place.child("export"), segment_size_bytes=3000, run_size_bytes=5000)
    return place.child("export")


@pytest.mark.thorough("S3")
def test_inputs_are_inspected(export: ObjectFolder, place: ObjectFolder) -> None:
    inputs = read_sources([export]).inputs
    assert len(inputs) > 3
    cut_short, gone = (inputs[number].name.rpartition("/")[2] for number in (1, 2))
    export.write(cut_short, export.read(cut_short)[:-1])
    export.remove(gone)
    numbers = pa.RecordBatch.from_arrays([pa.array(range(len(inputs)), pa.int64())], schema=tasks.NUMBERS)
    found = reports_of(tasks.inspect(inputs, place.child("job"))(iter([numbers])))
    assert [report["input"] for report in found] == list(range(len(inputs)))
    assert {report["input"] for report in found if "problem" in report} == {1, 2}
    assert f"{export.file(cut_short)} is damaged" in str(found[1]["problem"])
    assert str(export.file(gone)) in str(found[2]["problem"])
    probes = {report["probe"] for report in found if "probe" in report}
    assert set(place.child("job").names()) == probes


@pytest.mark.thorough("S3")
def test_a_segment_that_is_damaged_after_the_inspection_is_named(export: ObjectFolder, place: ObjectFolder) -> None:
    with job_of([export], place.child("job"), ONE) as job:
        export.write("posts-000000.seg", b"nothing")
        with pytest.raises(ExportError, match=r"posts-000000\.seg is damaged"):
            run_tasks(job, Random(1))


@pytest.mark.thorough("S3")
def test_a_segment_with_a_wrong_checksum_is_omitted_from_all_partitions(
    export: ObjectFolder, place: ObjectFolder
) -> None:
    """The segment has the right size, so only reading it finds the damage. Its posts and deletions are not in the
    result."""
    with job_of([export], place.child("job"), replace(ONE, bucket_size_bytes=10_000)) as job:
        assert len(job.inputs) > 3
        damaged = job.inputs[1]
        name = damaged.name.rpartition("/")[2]
        data = bytearray(export.read(name))
        data[len(data) // 2] ^= 1
        export.write(name, bytes(data))
        assert damaged.quick_check(job.folder) is None
        rows, reports, _ = run_tasks(job, Random("left out"), skip_corrupt=True)
        derived = [report for report in reports if "run" in report]
        assert len(derived) == job.partitions
        (problem,) = tasks.problems_of(job, derived)
        assert problem["problem"] == damaged.problem(job.folder)
        assert f"{damaged.name} is damaged: its BLAKE3 is " in problem["problem"]
        others = tuple(each for each in job.inputs if each != damaged)
        assert rows == run_tasks(replace(job, folder=place.child("others"), inputs=others), Random("others"))[0]


def test_an_input_that_changes_during_the_job_is_not_partly_omitted(export: ObjectFolder, place: ObjectFolder) -> None:
    with job_of([export], place.child("job"), ONE) as job:
        found = {"input": 1, "problem": "x.seg is damaged", "is_partly_read": False}
        whole: dict[str, Any] = {"problems": []}
        lacking = {"problems": [found]}
        assert tasks.problems_of(job, [whole, whole]) == []
        assert tasks.problems_of(job, [lacking, lacking]) == [found]
        with pytest.raises(ReindexError, match="changed while they were read"):
            tasks.problems_of(job, [whole, lacking])
        with pytest.raises(ExportError, match=r"x\.seg is damaged"):
            tasks.problems_of(job, [{"problems": [{**found, "is_partly_read": True}]}])


@pytest.mark.thorough("S3-cut", "S3-garbled", "S3-gone")
@pytest.mark.parametrize("damage", ["cut", "garbled", "gone"])
def test_a_damaged_run_is_an_error_that_names_it(place: ObjectFolder, damage: str) -> None:
    rows = [(b"%03d" % number, bytes(50)) for number in range(100)]
    run = "run-000000"
    write_run(place, run, into_buckets(rows, [b"030", b"060"]))
    assert [row for bucket in range(3) for row in read_bucket(place, [run], bucket, 3)] == rows
    whole = place.read(run)
    if damage == "gone":
        place.remove(run)
    else:
        place.write(run, whole[:-20] if damage == "cut" else whole[:-20] + bytes(20))
    with pytest.raises(ExportError, match=str(place.file(run))):
        read_bucket(place, [run], 2, 3)


@pytest.mark.thorough
def test_a_repeated_attempt_writes_the_same_bytes(export: ObjectFolder, place: ObjectFolder) -> None:
    """Spark may repeat a task, or run it twice concurrently. The result is the same for any order of writes."""
    work = place.child("job")
    with job_of([export], work, replace(ONE, bucket_size_bytes=10_000)) as job:
        found = []
        for seed in range(2):
            rows, _, _ = run_tasks(job, Random(seed))
            found.append((rows, {name: work.read(name) for name in work.names()}))
    assert found[0] == found[1]
    assert any(name.startswith("run-") for name in found[0][1])


@pytest.mark.thorough
def test_an_object_store_that_does_not_answer_is_not_a_damaged_input(
    export: ObjectFolder, place: ObjectFolder, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --skip-corrupt it would be skipped."""
    if place.is_local:
        pytest.skip("a disk that fails is damaged")
    monkeypatch.setattr(remote, "_ATTEMPTS", 1)
    with job_of([export], place.child("job"), ONE) as job:
        inputs = job.inputs
    s3: S3Server = request.getfixturevalue("s3")
    numbers = pa.RecordBatch.from_arrays([pa.array([0], pa.int64())], schema=tasks.NUMBERS)
    with faulty_proxy(s3.port) as proxy:
        for name, value in environment_of(proxy.port).items():
            monkeypatch.setenv(name, value)
        proxy.fault = lambda *_: "refuse"
        task = tasks.inspect(pickle.loads(pickle.dumps(inputs)), place.child("job"))
        with pytest.raises(StorageError, match=r"posts-000000\.seg"):
            reports_of(task(iter([numbers])))
        reading = tasks.read(pickle.loads(pickle.dumps(job)), frozenset(range(job.partitions)))
        with pytest.raises(StorageError, match=r"posts-000000\.seg"):
            list(reading(iter([numbers])))


def test_an_error_in_a_task_keeps_its_type() -> None:
    for kind in (ArchiveError, ExportError, StorageError, ReindexError):
        report = {"error": "what was found", "kind": kind.__name__}
        assert type(tasks.error_of(report)) is kind
        assert str(tasks.error_of(report)) == "what was found"
    assert type(tasks.error_of({"error": "x", "kind": "DecodeError"})) is ReindexError


@pytest.mark.parametrize(("kind", "tries"), [(StorageError, 1), (ExportError, 3)])
def test_a_failing_location_is_tried_by_one_task_of_a_stage(kind: type[CableStoreError], tries: int) -> None:
    """All tasks of the stage report its error. The next stage tries again."""
    tried: list[int] = []

    def work(number: int) -> dict[str, Any]:
        tried.append(number)
        raise kind(f"number {number}")

    for stage in range(2):
        task = tasks.reporting(work)
        batches = [pa.RecordBatch.from_arrays([pa.array([number])], schema=tasks.NUMBERS) for number in range(3)]
        reports = [json.loads(line) for batch in batches for line in next(task(iter([batch]))).column(0).to_pylist()]
        assert {report["kind"] for report in reports} == {kind.__name__}
        assert len({report["error"] for report in reports}) == tries
        assert len(tried) == tries * (stage + 1)


@pytest.mark.thorough("S3")
def test_a_job_is_distinguished_from_others_by_its_work(export: ObjectFolder, tmp_path: Path) -> None:
    with job_of([export], tmp_path / "job", ONE) as job:
        others = [
            replace(job, partitions=9),
            replace(job, boundaries=job.boundaries[1:]),
            replace(job, inputs=job.inputs[1:]),
            replace(job, inputs=(*job.inputs[1:], job.inputs[0])),
            replace(job, drops=Drops(before_ms=1)),
            replace(job, drops=Drops(authors=frozenset([ANN.key]))),
            replace(job, drops=Drops(channels=frozenset(["default"]))),
            replace(job, wanted=(False, *job.wanted[1:]))
            if job.wanted[0]
            else replace(job, wanted=(True, *job.wanted[1:])),
        ]
        assert job.fingerprint() == replace(job, folder=folder_of(tmp_path)).fingerprint()
        prints = {other.fingerprint() for other in others} | {job.fingerprint()}
        assert len(prints) == len(others) + 1


@pytest.mark.thorough("S3")
def test_a_work_folder_is_empty_or_belongs_to_an_earlier_job(place: ObjectFolder) -> None:
    """The folder is emptied and removed at the end, so the content of another folder must be safe."""
    other = place.child("other")
    other.child("below").write("precious", b"kept")
    with pytest.raises(ReindexError, match="is not a work folder"):
        claim_folder(other)
    assert other.child("below").read("precious") == b"kept"
    work = claim_folder(place.child("work"))
    work.write("run-000000", b"")
    assert claim_folder(work) == work
    killed = place.child("killed")  # while the job wrote its mark
    killed.write("cablestore-work.0123.tmp", b"")
    assert claim_folder(killed).exists("cablestore-work")
    assert "run-000000" in work.names()
