"""Files of tables: Parquet, by month if a table grows with the history, in a local folder or in an object store.

    OUT/posts/month=2024-05/part-00000.parquet    posts, messages, deletions: sorted by (timestamp, hash)
    OUT/users/part-00000.parquet                  topics, members, users, channels
    OUT/tables.json                               sources, and every file with its rows; written last

Workers write the files themselves, and return only their names to the driver.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import StorageLevel, TaskContext
from pyspark.sql import DataFrame, Row

from cablestore.documents import as_declared, read_document
from cablestore.errors import ExportError, ReindexError
from cablestore.files import Location, ObjectFolder, folder_of
from cablestore.reindex.columns import BY_MONTH, SETTLED, schema_of
from cablestore.reindex.driver import Progress
from cablestore.reindex.inputs import ArchiveSource, posts_of
from cablestore.reindex.job import Drops, claim_folder, is_begun, shared
from cablestore.reindex.prepare import JobSources, read_sources
from cablestore.reindex.queries import run_query
from cablestore.reindex.settled import Tables, found_deletions, found_posts, settle
from cablestore.reindex.stages import JobReport, SparkOptions, Stages, no_progress, on_spark
from cablestore.reindex.workers import in_worker

FORMAT: Final = 1
"""Version of tables.json, and of the columns and paths of files."""

DESCRIPTION: Final = "tables.json"
UNFINISHED: Final = "unfinished.json"

_FILE_ROWS: Final = 250_000
"""Approximate number of rows of a file. A file has about ten megabytes, which tools and workers hold in memory."""
_GROUP_ROWS: Final = 100_000
_GROUP_SIZE_BYTES: Final = 2**26
_SHARE_POSTS: Final = 100_000
"""Number of posts for each partition of a shuffle. In all shuffles together, a partition's tasks take 2 s of CPU."""
_LATER: Final = "later"
"""The month of times after the year 9999, and of the file of a table without rows."""
_EMPTY_FILE: Final = "part-00000.parquet"
_SORTED_BY: Final = {
    "topics": ("timestamp", "hash"),
    "members": ("channel", "author"),
    "users": ("author",),
    "channels": ("channel",),
}
_FILES: Final = pa.schema([("file", pa.string()), ("rows", pa.int64())])

Batches = Iterator[pa.RecordBatch]


@dataclass(slots=True)
class TableFiles:
    """Files of a table: their paths below OUT, each with its number of rows."""

    files: dict[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Number of rows in all files."""
        return sum(self.files.values())


@dataclass(slots=True)
class TablesReport:
    """Report of the tables in `uri`."""

    uri: str
    tables: dict[str, TableFiles] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """Duration of each stage of this run."""


def write_tables(
    exports: Sequence[Location],
    out: Location,
    *,
    archives: Sequence[ArchiveSource] = (),
    drops: Drops | None = None,
    work: Path,
    spark: SparkOptions | None = None,
    progress: Progress = no_progress,
) -> TablesReport:
    """Write the settled tables of exports and archives to `out`, a path or URI to which the workers have access too.

    Finished tables of an interrupted run are kept. `work` is a folder on this machine for Spark's own files. Raises
    ExportError, ArchiveError, StorageError, and ReindexError if Spark fails.
    """
    sources, drops = read_sources(exports, archives), drops or Drops()
    written = _Written.begin(shared(out), sources, drops)
    report = TablesReport(written.folder.uri, written.tables)
    if set(report.tables) == set(SETTLED):
        return report
    local = work.absolute()
    ran = JobReport(claim_folder(folder_of(local)), local, sources.dialect, seconds=report.seconds)

    def write(run: Stages) -> TablesReport:
        found = found_posts(run.spark, sources).persist(StorageLevel.DISK_ONLY)
        said = found_deletions(run.spark, sources).persist(StorageLevel.DISK_ONLY)
        settled = settle(found, said, drops)
        for name in SETTLED:
            if name not in written.tables:
                written.add(name, _write(run, written.folder, name, settled))
        found.unpersist()
        said.unpersist()
        written.finish()
        return report

    return on_spark(write, ran, _options(spark, posts_of(sources.inputs)), progress)


def _options(spark: SparkOptions | None, posts: int) -> SparkOptions:
    """Return the options with defaults for tables: rows are small here, while other jobs have blobs."""
    options = spark or SparkOptions()
    ours = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.shuffle.partitions": str(1 + posts // _SHARE_POSTS),
    }
    return replace(options, settings={**ours, **options.settings})


@dataclass(slots=True)
class _Written:
    """Tables that are already complete. `unfinished.json` lists them."""

    folder: ObjectFolder
    about: dict[str, Any]
    tables: dict[str, TableFiles]

    @classmethod
    def begin(cls, folder: ObjectFolder, sources: JobSources, drops: Drops) -> _Written:
        """Read the state of an earlier run, and mark the folder before tables are written to it.

        Raises ExportError if the folder contains other files.
        """
        about = {
            "format": FORMAT,
            "dialect": sources.dialect.name,
            "sources": _fingerprint(sources),
            "drops": {
                "authors": sorted(author.hex() for author in drops.authors),
                "channels": sorted(drops.channels),
                "before_ms": drops.before_ms,
            },
        }
        if folder.exists(DESCRIPTION):
            return cls(folder, about, _tables_in(folder, DESCRIPTION, about))
        written = cls(folder, about, {})
        if folder.exists(UNFINISHED):
            written.tables = _tables_in(folder, UNFINISHED, about)
        elif not folder.is_empty() and not is_begun(folder, UNFINISHED):
            raise ExportError(f"{folder.uri} contains other files or folders. Choose a new folder for the tables")
        written.note()
        return written

    def add(self, name: str, table: TableFiles) -> None:
        """Record that a table is complete."""
        self.tables[name] = table
        self.note()

    def note(self) -> None:
        """Write the list of complete tables. The next run reads it, and recognizes the folder by it."""
        self.folder.write(UNFINISHED, self._encoded())

    def finish(self) -> None:
        """Write the description, which completes the tables."""
        self.folder.write(DESCRIPTION, self._encoded())
        self.folder.remove(UNFINISHED)

    def _encoded(self) -> bytes:
        tables = {name: asdict(self.tables[name]) for name in SETTLED if name in self.tables}
        return json.dumps(self.about | {"tables": tables}, indent=1).encode() + b"\n"


def _fingerprint(sources: JobSources) -> str:
    digests = json.dumps([source.digest for source in sources.inputs]).encode()
    return hashlib.blake2b(digests, digest_size=16).hexdigest()


def _tables_in(folder: ObjectFolder, name: str, about: dict[str, Any]) -> dict[str, TableFiles]:
    """Return the tables that the file `name` lists as complete.

    Raises ExportError if the file is damaged, or if its sources or drops differ from `about`.
    """
    try:
        fields = read_document(folder.read(name), dict[str, Any])
        found = as_declared(fields.pop("tables", None), dict[str, TableFiles])
    except ValueError as error:
        raise ExportError(
            f"{folder.uri}/{name} is damaged: {error}. Remove {folder.uri}, or choose a new folder"
        ) from None
    if fields != about and (found or fields.keys() != about.keys()):
        raise ExportError(f"{folder.uri} contains tables of other sources or drops. Remove it, or choose a new folder")
    return found


# --- one table -----------------------------------------------------------------------------------


def _write(run: Stages, folder: ObjectFolder, name: str, settled: Tables) -> TableFiles:
    """Write the files of the table `name`, and return their description."""
    place = folder.child(name)
    place.remove_all()  # an interrupted run may have left other files
    table = getattr(settled, name).select(*SETTLED[name])
    if name in BY_MONTH:
        by = ("timestamp", "target" if name == "deletions" else "hash")
        [counted] = _run(run, f"settle {name}", table.groupBy().count())
        ordered = table.repartitionByRange(1 + counted[0] // _FILE_ROWS, *by).sortWithinPartitions(*by)
    else:
        ordered = table.coalesce(1).sortWithinPartitions(*_SORTED_BY[name])
    rows = _run(run, f"write {name}", ordered.mapInArrow(in_worker(_writing(place, name)), "file string, rows long"))
    files = {f"{name}/{row.file}": row.rows for row in rows}
    if not files:  # readers get the columns from a file without rows, and the month from its folder
        month = f"{_month_folder(_LATER)}/" if name in BY_MONTH else ""
        with (place.child(month[:-1]) if month else place).writing(_EMPTY_FILE) as file:
            pq.write_table(schema_of(SETTLED[name]).empty_table(), file)
        files = {f"{name}/{month}{_EMPTY_FILE}": 0}
    found = TableFiles(dict(sorted(files.items())))
    _find(folder, next(iter(found.files)))
    return found


def _run(run: Stages, name: str, table: DataFrame) -> list[Row]:
    """Return the rows of a small table, with progress."""
    started = time.perf_counter()
    rows = run_query(run.spark, name, table.collect, lambda done, total: run.progress(name, done, total))
    run.ran.seconds[name] = round(time.perf_counter() - started, 2)
    return rows


def _find(folder: ObjectFolder, file: str) -> None:
    """Raise ReindexError if a file of a worker does not exist for the driver."""
    *parents, name = file.split("/")
    for parent in parents:
        folder = folder.child(parent)
    if not folder.exists(name):
        raise ReindexError(
            f"the driver does not see {name}, which a worker wrote to {folder.uri}. Choose a folder for --out that "
            "all machines share under the same path, or an object store"
        )


def _writing(place: ObjectFolder, name: str) -> Callable[[Batches], Batches]:
    """Return the task that writes the rows of a partition, and reports its files."""

    def task(batches: Batches) -> Batches:
        context = TaskContext.get()
        file = f"part-{context.partitionId() if context else 0:05d}.parquet"
        schema = schema_of(SETTLED[name])
        for month, rows in _by_month(batches) if name in BY_MONTH else [("", batches)]:
            count = _write_file(place.child(month) if month else place, file, schema, rows)
            if count:
                told = {"file": [f"{month}/{file}" if month else file], "rows": [count]}
                yield pa.RecordBatch.from_pydict(told, schema=_FILES)

    return task


def _write_file(place: ObjectFolder, name: str, schema: pa.Schema, batches: Batches) -> int:
    """Write batches to one file, in groups of rows, unless they are empty. Return the number of rows."""
    groups = _groups(batches, schema)
    first = next(groups, None)
    if first is None:
        return 0
    rows = 0
    with place.writing(name) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for group in chain([first], groups):
            writer.write_table(group)
            rows += len(group)
    return rows


def _groups(batches: Batches, schema: pa.Schema) -> Iterator[pa.Table]:
    found: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            found.append(batch.cast(schema))
        if sum(each.num_rows for each in found) >= _GROUP_ROWS or sum(b.nbytes for b in found) >= _GROUP_SIZE_BYTES:
            yield pa.Table.from_batches(found, schema)
            found = []
    if found:
        yield pa.Table.from_batches(found, schema)


def _by_month(batches: Batches) -> Iterator[tuple[str, Batches]]:
    """Yield (folder, batches) of each month. Read the batches before the next month. Rows are in order of time."""
    pieces = (piece for batch in batches for piece in _cut(batch))
    ahead = next(pieces, None)

    def of(month: str) -> Batches:
        nonlocal ahead
        while ahead is not None and ahead[0] == month:
            yield ahead[1]
            ahead = next(pieces, None)

    while ahead is not None:
        yield ahead[0], of(ahead[0])


def _month_folder(month: str) -> str:
    return f"month={month}"


def _cut(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    months = pc.fill_null(pc.strftime(batch.column("time"), "%Y-%m"), _LATER)
    at = 0
    for counted in pc.value_counts(months).to_pylist():
        yield _month_folder(counted["values"]), batch.slice(at, counted["counts"])
        at += counted["counts"]
