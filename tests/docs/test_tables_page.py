"""The guide about tables: its queries and programs run on the year that it shows, and on small communities."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest
from documents import blocks
from exporting import export
from folders import ROOT
from people import ANN, BOB
from pyspark.sql import SparkSession
from reindexing import spark_session

from cablestore import LEGACY, CableStore, Post
from cablestore.reindex.columns import BY_MONTH, SETTLED
from cablestore.reindex.table_files import write_tables

PAGE = "docs/how-to/tables.md"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("year", ROOT / "docs" / "img" / "year.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def year() -> ModuleType:
    return script()


def run_programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the programs of the page on the export OUT of a folder."""
    monkeypatch.chdir(folder)
    for program in blocks(PAGE):
        # Spark resolves relative paths against the folder where it started.
        exec(compile(program.replace('"OUT"', f'"{folder}/OUT"'), PAGE, "exec"), {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    found = tmp_path_factory.mktemp("year")
    with spark_session(found / "spark"):
        yield found


@pytest.fixture(scope="module")
def store(folder: Path, year: ModuleType) -> Iterator[CableStore]:
    with year.make_tables(folder) as store:
        yield store


@pytest.fixture(scope="module")
def answers(store: CableStore, folder: Path, year: ModuleType) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = year.answers(folder)
    return found


@pytest.mark.thorough
def test_queries_return_the_same_as_the_store(answers: dict[str, list[dict[str, Any]]], store: CableStore) -> None:
    found = {int(heading.partition(".")[0]): rows for heading, rows in answers.items() if heading[0].isdigit()}
    assert all(found.values())
    texts = store.stats().posts["text"]
    assert sum(row["messages"] for row in found[1]) == texts
    assert [row["month"] for row in found[1]] == [f"2024-{month:02d}" for month in range(1, 13)]
    assert sum(row["messages"] for row in found[2]) == texts
    assert sum(row["newcomers"] for row in found[3]) == len(list(store.users()))
    channels = {channel.name: channel for channel in store.channels()}
    assert {row["channel"]: (row["members"], row["texts"], row["topic"]) for row in found[4]} == {
        name: (channel.members, channel.posts["text"], channel.topic) for name, channel in channels.items()
    }
    names = {user.name: len(list(store.posts_by(user.public_key, post_type=0))) for user in store.users()}
    assert {row["name"]: row["messages"] for row in found[5]} == names
    assert all(row["who"] != row["whom"] and {row["who"], row["whom"]} <= names.keys() for row in found[7])
    current = {row["channel"]: row["topic"] for row in found[9] if row["is_current"]}
    assert current == {name: channel.topic for name, channel in channels.items() if channel.topic}
    assert len(found[9]) == store.stats().posts["topic"]
    assert sum(row["deleted"] for row in found[10]) > 10


@pytest.mark.thorough
def test_pictures_match_the_results_of_the_queries(
    answers: dict[str, list[dict[str, Any]]], year: ModuleType, folder: Path
) -> None:
    year.draw(folder, folder)
    for name, _ in year.PICTURES.values():
        drawn = (folder / name).read_text()
        assert ET.fromstring(drawn).tag.endswith("svg")
        assert drawn == (ROOT / "docs" / "img" / name).read_text(), "run `make pictures`"
        assert f"../img/{name}" in (ROOT / PAGE).read_text()


@pytest.mark.thorough
@pytest.mark.usefixtures("store")
def test_programs_of_the_page_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run_programs(folder, monkeypatch)
    printed = capfd.readouterr().out
    assert "2024-07" in printed
    assert "garden" in printed
    assert "is_signed" in printed


# --- small communities -------------------------------------------------------------------------------

NAME, JOIN, TOPIC = ANN.named("ann"), ANN.join("default"), ANN.topic("default", "all of it")
TEXT = BOB.text("default", "hello")
REPLY = ANN.text("default", "welcome", links=(TEXT.hash,))
DELETION = BOB.delete(TEXT)
FAR = BOB.text("default", "in the year 10000", at=253_402_300_800_000)

COMMUNITIES: dict[str, tuple[Post, ...]] = {
    "no post": (),
    "a join": (JOIN,),
    "a deleted text": (TEXT, DELETION),
    "a name": (NAME,),
    "a topic": (TOPIC,),
    "a text": (TEXT,),
    "a text after the year 9999": (FAR,),
    "no deletion": (NAME, JOIN, TOPIC, TEXT, REPLY),
    "no reply": (NAME, JOIN, TOPIC, TEXT),
    "everything": (NAME, JOIN, TOPIC, TEXT, REPLY, DELETION),
}


# Readers are imported by the tests that use them: every process of a run imports this file.


def of_duckdb(place: Path) -> dict[str, str]:
    import duckdb

    with duckdb.connect() as connection:
        found = connection.execute(f"DESCRIBE FROM '{place}/**/*.parquet'").fetchall()
    return {row[0]: row[1] for row in found}


def of_polars(place: Path) -> dict[str, str]:
    import polars as pl

    return {name: str(kind) for name, kind in pl.read_parquet(place).schema.items()}


def of_pandas(place: Path) -> dict[str, str]:
    import pandas as pd

    return {str(name): str(kind) for name, kind in pd.read_parquet(place).dtypes.items()}


def of_pyarrow(place: Path) -> dict[str, str]:
    return {field.name: str(field.type) for field in pq.read_table(place).schema}


def of_spark(place: Path) -> dict[str, str]:
    return dict(SparkSession.builder.getOrCreate().read.parquet(str(place)).dtypes)


Reader = Callable[[Path], dict[str, str]]
"""Function that returns the columns of a table, and their types."""

MONTH: dict[Reader, str] = {
    of_duckdb: "VARCHAR",
    of_polars: "String",
    of_pandas: "category",
    of_pyarrow: "dictionary<values=string, indices=int32, ordered=0>",
    of_spark: "string",
}


@pytest.fixture(scope="module")
def write_small(folder: Path) -> Callable[[str], Path]:
    """Return a function that writes the export OUT and the tables of a community, once. It returns their folder."""

    @cache
    def write(community: str) -> Path:
        place = folder / community.replace(" ", "-")
        export(COMMUNITIES[community], place / "OUT", LEGACY)
        write_tables([place / "OUT"], place / "tables", work=place / "work")
        return place

    return write


@pytest.fixture(scope="module")
def columns(write_small: Callable[[str], Path]) -> dict[tuple[str, Reader], dict[str, str]]:
    """Return the columns of the tables of a community that has posts of all types, in every reader."""
    tables = write_small("everything") / "tables"
    return {(name, reader): reader(tables / name) for name in SETTLED for reader in MONTH}


@pytest.mark.thorough
@pytest.mark.parametrize("community", COMMUNITIES)
def test_any_community_has_the_same_columns_and_answers(
    community: str,
    write_small: Callable[[str], Path],
    columns: dict[tuple[str, Reader], dict[str, str]],
    year: ModuleType,
) -> None:
    """In every reader, the columns do not depend on the posts, and every query of the page runs."""
    import duckdb

    small = write_small(community)
    for (name, reader), expected in columns.items():
        assert reader(small / "tables" / name) == expected, (name, reader)
        assert expected.get("month") == (MONTH[reader] if name in BY_MONTH else None)
    answers = {
        int(heading.split(".")[0]): rows for heading, rows in year.answers(small).items() if heading[0].isdigit()
    }
    assert len(answers) == 10
    with duckdb.connect() as connection:
        texts = connection.execute(f"SELECT count(*) FROM '{small}/tables/messages/**/*.parquet'").fetchone()
    assert texts is not None
    assert sum(row["messages"] for row in answers[1]) == texts[0] == sum(row["messages"] for row in answers[5])


@pytest.mark.thorough
@pytest.mark.parametrize("community", ["no post", "a join"])
def test_programs_of_the_page_run_on_any_community(
    community: str,
    write_small: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run_programs(write_small(community), monkeypatch)
    assert "is_signed" in capfd.readouterr().out
