"""The readers of the data source yield the rows of exports and archives. Spark calls them; the tests do not need it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from archives import CONTROL, KEY, archived, plan_of, some_weeks, store_of
from exporting import forge
from people import ANN, BOB, START_MS
from table_answers import in_order, of_post, time_of

pytest.importorskip("pyspark")

from pyspark.sql.datasource import EqualTo, InputPartition
from pyspark.sql.types import IntegerType, StructField, StructType

from cablestore import Block, Post, Tombstone
from cablestore.archive.names import DATA
from cablestore.errors import ArchiveError
from cablestore.index.tombstone import Skeleton
from cablestore.protocol.body import TEXT
from cablestore.reindex.columns import DELETIONS, POSTS
from cablestore.reindex.source import CableReader, CableSource, PushingReader, SourceOptions

POST_LIST = [
    ANN.text("default", "one", at=START_MS),
    BOB.topic("default", "two", at=START_MS + 1),
    ANN.named("ann", at=START_MS + 2),
    BOB.join("a b", at=START_MS + 3),
]
GONE = BOB.text("default", "gone", at=START_MS + 4)
DELETION = BOB.delete(GONE, POST_LIST[1], at=START_MS + 5)
PRIVATE = BOB.post(Block("", 1, (ANN.key,), 0, 1), at=START_MS)
STONE = Tombstone(
    GONE.hash, BOB.key, DELETION.timestamp_ms, DELETION.hash, Skeleton(TEXT, GONE.timestamp_ms, "default", ())
)
WAITING = replace(STONE, target=POST_LIST[1].hash, skeleton=None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an export with a local-only post, and with two tombstones, one of which has no effect."""
    return forge(tmp_path / "export", [*POST_LIST, DELETION, PRIVATE], [STONE, WAITING])


def rows_in(reader: CableReader) -> list[dict[str, Any]]:
    return [row for partition in reader.partitions() for batch in reader.read(partition) for row in batch.to_pylist()]


def expected_rows(posts: list[Post]) -> list[dict[str, Any]]:
    return in_order([of_post(post) | {"raw": post.raw} for post in posts])


@pytest.mark.parametrize(
    ("bounds", "chosen"),
    [
        ({}, range(5)),
        ({"types": "text, topic"}, [0, 1]),
        ({"after_ms": f"{START_MS + 1}", "before_ms": f"{START_MS + 3}"}, [1, 2]),
        ({"after_ms": f"{START_MS + 5}"}, [4]),
        ({"before_ms": f"{START_MS + 1}", "types": "text,info"}, [0]),
        ({"after_ms": f"{START_MS + 6}"}, []),
    ],
)
def test_posts_within_the_bounds_are_read(bounds: dict[str, str], chosen: list[int], folder: Path) -> None:
    found = rows_in(CableReader(SourceOptions.of({"path": str(folder), **bounds})))
    assert in_order(found) == expected_rows([[*POST_LIST, DELETION][at] for at in chosen])
    assert all(list(row) == list(POSTS) for row in found)


@pytest.mark.parametrize(
    ("after_ms", "before_ms", "rows"), [(0, START_MS + 6, 3), (START_MS + 5, START_MS + 6, 3), (0, START_MS + 5, 0)]
)
def test_deletions_are_read_from_posts_and_from_effective_tombstones(
    after_ms: int, before_ms: int, rows: int, folder: Path
) -> None:
    options = {"paths": f'["{folder}"]', "table": "deletions", "after_ms": f"{after_ms}", "before_ms": f"{before_ms}"}
    reader = PushingReader(SourceOptions.of(options))
    reader.pushFilters([EqualTo(("type",), "text")])  # the type of the target
    found = sorted(rows_in(reader), key=lambda row: (not row["is_signed"], row["type"] is not None, row["target"]))
    assert len(found) == rows
    if not rows:
        return
    deleted: dict[str, Any] = {"author": BOB.key.hex(), "hash": DELETION.hash.hex(), "timestamp": START_MS + 5}
    deleted["time"] = time_of(START_MS + 5)
    of_target: dict[str, Any] = {
        "is_signed": True,
        "type": None,
        "channel": None,
        "target_timestamp": None,
        "skeleton": None,
    }
    signed = [
        {"target": target, **deleted, **of_target} for target in sorted([GONE.hash.hex(), POST_LIST[1].hash.hex()])
    ]
    skeleton = found[-1].pop("skeleton")
    of_target = {"is_signed": False, "type": "text", "channel": "default", "target_timestamp": GONE.timestamp_ms}
    assert found == [*signed, {"target": GONE.hash.hex(), **deleted, **of_target}]
    assert b"default" in skeleton
    assert list(found[0]) == list(DELETIONS)


def test_spark_gets_a_reader_of_its_columns_and_filters_only_if_an_option_is_set(folder: Path) -> None:
    source = CableSource({"path": str(folder), "columns": "timestamp, hash"})
    assert source.name() == "cablestore"
    assert source.schema() == "timestamp BIGINT NOT NULL, hash STRING NOT NULL"
    schema = StructType([StructField(name, IntegerType()) for name in ("hash", "type")])
    reader = source.reader(schema)
    assert type(reader) is CableReader
    assert {(row["hash"], row["type"], len(row)) for row in rows_in(reader)} == {
        (post.hash.hex(), post.type_name, 2) for post in [*POST_LIST, DELETION]
    }
    assert list(reader.read(InputPartition(None))) == []  # of an empty list
    for value, kind in (("True", PushingReader), ("false", CableReader)):
        assert type(CableSource({"path": str(folder), "push_filters": value}).reader(schema)) is kind


def test_archives_are_verified_and_read(tmp_path: Path) -> None:
    posts = some_weeks(weeks=2, per_week=6)
    made = tmp_path / CONTROL.public_key.hex()
    store = store_of(posts)
    archived(store, made, plan_of(key=KEY))
    (tmp_path / "key").write_text(f"{KEY.hex()}\n")
    options = {"path": str(tmp_path), "control_key": CONTROL.public_key.hex(), "cabal_key_file": str(tmp_path / "key")}
    reader = CableReader(SourceOptions.of(options | {"after_ms": "0"}))
    assert in_order(rows_in(reader)) == expected_rows([post for post in posts if store.get(post.hash)])
    data = made / DATA
    data.write_bytes(bytes(data.stat().st_size))
    with pytest.raises(ArchiveError, match="archive "):
        rows_in(reader)
