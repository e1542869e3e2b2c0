"""Tables: the tables of exports and archives on Spark equal the answers of a store with all their posts."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from archives import CONTROL, KEY, archived, plan_of, some_weeks, store_of
from exporting import export, forge, in_memory, scratch_folder, stones_in
from history import TIMES_MS, histories, long_history
from hypothesis import given, settings
from hypothesis import strategies as st
from people import ANN, BOB
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from reindexing import spark_session
from table_answers import answers, in_order, of_post

from cablestore import DRAFT8, LEGACY, CableStore, Dialect, Post
from cablestore.errors import ExportError
from cablestore.export import Manifest
from cablestore.files import Location
from cablestore.index.tombstone import Skeleton
from cablestore.protocol.body import DELETE
from cablestore.reindex import register
from cablestore.reindex.columns import SETTLED
from cablestore.reindex.inputs import ArchiveSource
from cablestore.reindex.job import Drops
from cablestore.reindex.prepare import read_sources
from cablestore.reindex.settled import found_deletions, found_posts, settle
from cablestore.reindex.source import Bounds, PushingReader, SourceOptions

_SEGMENTS = {"segment_size_bytes": 4_000, "run_size_bytes": 10**9}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with spark_session(tmp_path_factory.mktemp("spark")) as started:
        started.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")  # as in a program for small tables
        yield started


def assert_equals_model(
    spark: SparkSession,
    exports: Sequence[Location],
    store: CableStore,
    drops: Drops | None = None,
    archives: Sequence[ArchiveSource] = (),
) -> None:
    """Compare all tables of exports and archives with the answers of a store."""
    sources = read_sources(exports, archives)
    found, said = found_posts(spark, sources).persist(), found_deletions(spark, sources).persist()
    settled = settle(found, said, drops or Drops())
    for name, expected in answers(store).items():
        table = getattr(settled, name)
        assert table.columns == list(SETTLED[name])
        assert in_order([row.asDict() for row in table.collect()]) == in_order(expected), name
    found.unpersist()
    said.unpersist()


@pytest.mark.thorough
@settings(max_examples=3)
@given(history=histories(max_posts=60), seed=st.integers())
def test_tables_of_any_history_in_any_exports_equal_the_store(
    spark: SparkSession, history: tuple[Dialect, list[Post]], seed: int
) -> None:
    """Posts are in any order, in overlapping exports, some with the deletions of posts in others."""
    dialect, posts = history
    rng = random.Random(seed)
    with scratch_folder() as scratch, in_memory(dialect, rng.sample(posts, len(posts))) as store:
        parts = [[post for post in posts if rng.randrange(2)] for _ in range(2)]
        # Forged, so that it also has dead posts without tombstones. A store would not export it.
        exports = [export(part, Path(scratch, str(at)), dialect).folder for at, part in enumerate(parts)]
        exports.append(forge(Path(scratch, "rest"), posts, [], dialect))
        rng.shuffle(exports)
        assert_equals_model(spark, exports, store)


@pytest.mark.thorough
def test_tables_without_some_posts_equal_the_store_without_them(
    spark: SparkSession, rng: random.Random, tmp_path: Path
) -> None:
    posts = long_history(rng, 400, DRAFT8)
    assert sum(post.type == DELETE for post in posts) > 20
    drops = Drops(frozenset({posts[0].author}), frozenset({"a b", posts[-1].channel or "a"}), TIMES_MS[3])
    exports = [forge(tmp_path / "all", posts, [], DRAFT8), export(posts[:200], tmp_path / "half", DRAFT8).folder]
    with in_memory(DRAFT8, posts) as store:
        assert_equals_model(spark, exports, store)
        store.discard([post.hash for post in posts if drops.reason(post)])
        assert_equals_model(spark, exports, store, drops)


@pytest.mark.thorough
def test_claims_about_deleted_posts_have_the_result_of_an_import(
    spark: SparkSession, rng: random.Random, tmp_path: Path
) -> None:
    """Exports have skeletons of posts that are in none of them. The result is that of importing them."""
    posts = long_history(rng, 200)
    manifests = [export(rng.sample(posts, 150), tmp_path / str(number), LEGACY) for number in range(2)]
    known = [stone for stone in stones_in(manifests[0]) if stone.skeleton is not None]
    assert known
    false_claims = [
        replace(stone, skeleton=Skeleton(0, 7, channel, ())) for stone, channel in zip(known, "ab", strict=False)
    ]
    false_claims += [replace(known[-1], deleted_by=bytes(32))]  # without a post/delete
    false_claims = list({(stone.target, stone.author): stone for stone in false_claims}.values())
    exports = [manifest.folder for manifest in manifests] + [forge(tmp_path / "lies", [], false_claims)]
    with in_memory(LEGACY) as store:
        store.import_exports(exports)
        assert_equals_model(spark, exports, store)


@pytest.mark.thorough
def test_tables_are_read_from_sealed_archives(spark: SparkSession, tmp_path: Path) -> None:
    posts, plan = some_weeks(), plan_of(key=KEY)
    archived(store_of(posts), tmp_path / CONTROL.public_key.hex(), plan)
    with in_memory(LEGACY, posts) as store:
        assert_equals_model(spark, [], store, archives=[ArchiveSource(tmp_path, CONTROL.public_key, KEY)])


@pytest.mark.thorough
def test_the_source_returns_the_contents_of_files(spark: SparkSession, rng: random.Random, tmp_path: Path) -> None:
    """Each post is there once per file, with each deletion by any author, and all tombstones."""
    posts = long_history(rng, 120)
    exports = [forge(tmp_path / "all", posts, []), export(posts, tmp_path / "settled", LEGACY).folder]
    register(spark)
    reader = spark.read.format("cablestore")
    found = [row.asDict() for row in reader.load([str(path) for path in exports]).collect()]
    with in_memory(LEGACY, posts) as store:
        live = [post for post in posts if store.get(post.hash)]
        stones = [stone for post in posts if (stone := store.deletion(post.hash))]
    expected = [of_post(post) | {"raw": bytearray(post.raw)} for post in [*posts, *live]]
    assert in_order(found) == in_order(expected)
    chosen = reader.option("table", "deletions").option("columns", "target,author,hash,is_signed")
    said = sorted(tuple(row) for row in chosen.load(str(exports[1])).collect())
    signed = [
        (target, post.author.hex(), post.hash.hex(), True)
        for post in posts
        if post.type == DELETE
        for target in dict.fromkeys(of_post(post)["targets"])
    ]
    unsigned = [(stone.target.hex(), stone.author.hex(), stone.deleted_by.hex(), False) for stone in stones]
    assert said == sorted(signed + unsigned)
    assert unsigned


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Return an export of some segments: texts, one a second, and a topic at the end."""
    posts = [ANN.text("default", f"{number} " * 40, at=1_000 * number) for number in range(100)]
    return export([*posts, BOB.topic("default", "late", at=200_000)], tmp_path / "export", LEGACY, **_SEGMENTS)


@pytest.mark.thorough
def test_segments_excluded_by_a_filter_are_not_read(spark: SparkSession, manifest: Manifest, tmp_path: Path) -> None:
    """The files of these segments are missing, and no error is raised."""
    assert len(manifest.post_segments) > 5
    for segment in manifest.post_segments[1:-1]:
        (tmp_path / "export" / segment.file).unlink()
    register(spark)
    folder = str(manifest.folder)
    reader = spark.read.format("cablestore")
    assert reader.option("before_ms", 3_000).load(folder).count() == 3
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    pushing = spark.read.format("cablestore").option("push_filters", "true").load(folder)
    assert pushing.where("type = 'topic' and timestamp >= 0").collect()[0].topic == "late"
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    with pytest.raises(PySparkException, match=r"posts-00000\d\.seg is missing"):
        spark.read.format("cablestore").load(folder).where("type = 'topic'").count()


@pytest.mark.thorough
def test_a_data_frame_is_used_more_than_once(spark: SparkSession, manifest: Manifest) -> None:
    """Spark mixes up the partitions of a reader to which it passes filters, so by default it does not pass any."""
    register(spark)
    found = spark.read.format("cablestore").load(str(manifest.folder))
    early, late = found.where("timestamp < 3000"), found.where("timestamp >= 98000")
    assert (early.count(), found.count(), early.union(late).count()) == (3, 101, 6)


_TIME, _TYPE = ("timestamp",), ("type",)


@pytest.mark.parametrize(
    ("kind", "is_true"),
    [
        (EqualTo, operator.eq),
        (GreaterThan, operator.gt),
        (GreaterThanOrEqual, operator.ge),
        (LessThan, operator.lt),
        (LessThanOrEqual, operator.le),
    ],
)
def test_the_bounds_of_a_filter_are_exactly_the_times_that_satisfy_it(
    kind: Callable[[tuple[str, ...], int], Filter], is_true: Callable[[int, int], bool]
) -> None:
    bounds = Bounds().narrowed(kind(_TIME, 100))
    times = range(90, 111)
    assert [at for at in times if bounds.first_ms <= at <= bounds.last_ms] == [at for at in times if is_true(at, 100)]


@pytest.mark.parametrize(
    ("filters", "first", "last"),
    [
        ([], 0, 201_000),
        ([EqualTo(_TIME, 50_000)], 50_000, 50_001),
        ([GreaterThan(_TIME, 49_999), LessThan(_TIME, 50_001)], 50_000, 50_001),
        ([GreaterThanOrEqual(_TIME, 90_000)], 90_000, 201_000),
        ([LessThanOrEqual(_TIME, 5_000), IsNotNull(_TIME)], 0, 5_001),
        ([GreaterThan(_TIME, 99_500)], 200_000, 201_000),
        ([EqualTo(_TYPE, "topic")], 200_000, 201_000),
        ([In(_TYPE, ("topic", "join", "nonsense"))], 200_000, 201_000),
        ([In(_TYPE, ("text",)), EqualTo(_TYPE, "topic")], 0, 0),
        ([Not(EqualTo(_TYPE, "text"))], 0, 201_000),
        ([EqualTo(("channel",), "default")], 0, 201_000),
        ([LessThan(_TIME, 0)], 0, 0),
        ([EqualTo(_TYPE, "nonsense")], 0, 0),
    ],
)
def test_filters_choose_segments(filters: list[Filter], first: int, last: int, manifest: Manifest) -> None:
    """The segments have a post of first <= time < last, and Spark keeps all filters."""
    reader = PushingReader(SourceOptions.of({"path": str(manifest.folder)}))
    assert list(reader.pushFilters(filters)) == filters
    expected = [
        segment.file
        for segment in manifest.post_segments
        if segment.first and segment.last and segment.first[0] < last and segment.last[0] >= first
    ]
    assert [partition.value[1].segment.file for partition in reader.partitions()] == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing to read"),
        ({"path": "x", "after_ms": "yesterday"}, "milliseconds since 1970"),
        ({"path": "x", "types": "text,song"}, "some of text"),
        ({"path": "x", "table": "deletions", "types": "text"}, "expected the table posts"),
        ({"path": "x", "table": "users"}, "posts or deletions"),
        ({"path": "x", "columns": "hash,colour"}, "column not found in posts: 'colour'"),
        ({"path": "x", "table": "deletions", "columns": "text"}, "column not found in deletions: 'text'"),
        ({"path": "x", "control_key": "abc"}, "`control_key`: a public key must consist of hex digits, got 'abc'"),
        ({"path": "x", "control_key": "ab"}, "must have 64 hex digits, got 2"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, str], message: str) -> None:
    with pytest.raises(ExportError, match=message):
        SourceOptions.of(options)


@pytest.mark.parametrize("secret", ["ab" * 31, "ab" * 33, "ab" * 31 + "xy", "5eed" * 16 + " comment", "ü" * 64])
def test_a_file_without_a_cabal_key_is_named_and_not_shown(secret: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(secret)
    with pytest.raises(ExportError, match="a cabal key must have 64 hex digits") as error:
        SourceOptions.of({"path": "x", "control_key": "00" * 32, "cabal_key_file": str(tmp_path / "key")})
    assert str(tmp_path / "key") in str(error.value)
    assert secret[:8] not in str(error.value)
