"""Data source of Spark: the rows of exports and archives, before they are settled.

    spark.read.format("cablestore").load("s3://bucket/export")                               # posts
    spark.read.format("cablestore").option("table", "deletions").load("s3://bucket/export")

`posts` contains each post of each file, including deleted posts and duplicates. `deletions` contains each hash in a
post/delete, regardless of the author of the target, and the tombstones of removed posts. `cablestore.reindex.tables`
settles both. Invalid and local-only posts are omitted, as in every job.

A partition is a segment or an archive. The options `after_ms`, `before_ms` and `types` select posts, and skip segments
by their entries in the manifest. Spark passes filters to the source only with the option `push_filters`, see
`PushingReader`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from cablestore.errors import DecodeError, ExportError
from cablestore.files import LocalFolder, Location, storage_errors
from cablestore.gc_pause import gc_paused
from cablestore.limits import MAX_TIMESTAMP_MS
from cablestore.protocol.body import DELETE, TYPE_NAMES, TYPE_NUMBERS
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.keys import parse_hex
from cablestore.protocol.post import Post, decode_post, peek_type
from cablestore.reindex.columns import DELETIONS, POSTS, Column, Deletion, batch_of, ddl_of
from cablestore.reindex.inputs import ArchiveSource, Input, SegmentInput
from cablestore.reindex.prepare import read_sources

NAME: Final = "cablestore"
"""Name of the format for `spark.read.format`."""

TABLES: Final[Mapping[str, Mapping[str, Column]]] = {"posts": POSTS, "deletions": DELETIONS}

_BETWEEN: Final[dict[type[Filter], Callable[[int], tuple[int, int]]]] = {
    EqualTo: lambda value: (value, value),
    GreaterThan: lambda value: (value + 1, MAX_TIMESTAMP_MS),
    GreaterThanOrEqual: lambda value: (value, MAX_TIMESTAMP_MS),
    LessThan: lambda value: (0, value - 1),
    LessThanOrEqual: lambda value: (0, value),
}
"""The first and the last time that satisfy a comparison."""


def register(spark: SparkSession) -> None:
    """Register the format "cablestore" in a session."""
    spark.dataSource.register(CableSource)


class CableSource(DataSource):
    """Data source of exports and archives. `SourceOptions.of` describes its options."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> str:
        """Return the schema of the columns that the options select."""
        return ddl_of(SourceOptions.of(self.options).columns)

    def reader(self, schema: StructType) -> CableReader:
        """Return the reader of these columns."""
        wanted = SourceOptions.of({**self.options, "columns": ",".join(schema.fieldNames())})
        pushes = self.options.get("push_filters", "false").lower() == "true"
        return PushingReader(wanted) if pushes else CableReader(wanted)


class Bounds(NamedTuple):
    """Bounds of posts: first <= timestamp <= last, and the numbers of `types`, or None for all types."""

    first_ms: int = 0
    last_ms: int = MAX_TIMESTAMP_MS
    types: frozenset[int] | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Bounds:
        """Read the bounds in the options of a data source. Raises ExportError for invalid options."""
        first_ms, end_ms = (_time_in(options, name) for name in ("after_ms", "before_ms"))
        found = cls().between(first_ms or 0, MAX_TIMESTAMP_MS if end_ms is None else end_ms - 1)
        if "types" not in options:
            return found
        names = [name.strip() for name in options["types"].split(",")]
        unknown = [name for name in names if name not in TYPE_NUMBERS]
        if unknown or options.get("table") == "deletions":
            raise ExportError(
                f"invalid option `types`: expected the table posts, and some of {', '.join(TYPE_NUMBERS)}"
            )
        return found.of_types(names)

    def choose(self, posts: list[Post]) -> list[Post]:
        """Return the posts within the bounds of time."""
        if self.first_ms == 0 and self.last_ms == MAX_TIMESTAMP_MS:
            return posts
        return [post for post in posts if self.first_ms <= post.timestamp_ms <= self.last_ms]

    def narrowed(self, each: Filter) -> Bounds:
        """Return the bounds narrowed by the filter `each`, unchanged if it does not limit times or types."""
        match each:
            case EqualTo(("type",), str(value)):
                return self.of_types([value])
            case In(("type",), values):
                return self.of_types(values)
            case EqualTo(at) | GreaterThan(at) | GreaterThanOrEqual(at) | LessThan(at) | LessThanOrEqual(at) if (
                at == ("timestamp",) and each.value is not None
            ):
                return self.between(*_BETWEEN[type(each)](each.value))
        return self

    def between(self, first_ms: int, last_ms: int) -> Bounds:
        """Return the bounds narrowed to first_ms <= timestamp <= last_ms."""
        return self._replace(first_ms=max(self.first_ms, first_ms), last_ms=min(self.last_ms, last_ms))

    def of_types(self, names: Iterable[Any]) -> Bounds:
        """Return the bounds narrowed to the types in `names`. Unknown names are ignored."""
        types = frozenset(TYPE_NUMBERS[name] for name in names if name in TYPE_NUMBERS)
        return self._replace(types=types if self.types is None else self.types & types)

    def may_hold(self, source: Input) -> bool:
        """Return True if an input may contain posts within the bounds. This is True for every archive."""
        if not isinstance(source, SegmentInput):
            return True
        first, last, posts = source.segment.first, source.segment.last, source.segment.posts
        if first is None or last is None:
            return True  # a segment of tombstones, which has no range of times
        is_in_time = first[0] <= self.last_ms and last[0] >= self.first_ms
        return is_in_time and (self.types is None or any(TYPE_NAMES[kind] in posts for kind in self.types))


class SourceOptions(NamedTuple):
    """Selection of the data to read: sources, a table, its columns and bounds."""

    exports: tuple[Location, ...]
    archives: tuple[ArchiveSource, ...]
    table: str
    columns: dict[str, Column]
    bounds: Bounds

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SourceOptions:
        """Read the options of a data source.

        `path` or `paths` (a JSON list) is the argument of `load`. `table` is posts or deletions. `columns` names
        columns, separated by commas, by default all. `after_ms` <= time < `before_ms` bounds times. `types` names the
        types of posts, separated by commas. With `control_key`, 64 hexadecimal digits, paths are folders of archives
        that this node signed. `cabal_key_file` is a file with the key that decrypts them.

        Raises ExportError for invalid options, StorageError for a key file that cannot be read.
        """
        table = options.get("table", "posts")
        if table not in TABLES:
            raise ExportError(f"table not found: {table!r}. Set the option `table` to {' or '.join(TABLES)}")
        known = TABLES[table]
        names = [name.strip() for name in options.get("columns", ",".join(known)).split(",")]
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ExportError(f"column not found in {table}: {unknown[0]!r}. The columns are {', '.join(known)}")
        paths = json.loads(options["paths"]) if "paths" in options else [options[n] for n in ("path",) if n in options]
        if not paths:
            raise ExportError("nothing to read. Pass an export, as in load('s3://bucket/export')")
        columns = {name: known[name] for name in names}
        if "control_key" not in options:
            return cls(tuple(paths), (), table, columns, Bounds.of(options))
        try:
            node = parse_hex(options["control_key"], "a public key")
        except DecodeError as error:
            raise ExportError(f"invalid option `control_key`: {error.reason}") from None
        key = _key_in(options.get("cabal_key_file"))
        return cls((), tuple(ArchiveSource(path, node, key) for path in paths), table, columns, Bounds.of(options))


def _time_in(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is not None and not (text.isascii() and text.isdecimal()):
        raise ExportError(
            f"invalid option `{name}`: expected milliseconds since 1970, such as 1704067200000, got {text!r}"
        )
    return None if text is None else int(text)


def _key_in(name: str | None) -> bytes | None:
    """Return the key in the file `name`, None if `name` is None.

    The key is not an option itself, because Spark shows options. Raises ExportError if the file does not contain a key,
    StorageError if it cannot be read.
    """
    if name is None:
        return None
    path = Path(name)
    with storage_errors(path):
        text = path.read_text(encoding="ascii", errors="replace").strip()
    try:
        return parse_hex(text, "a cabal key", is_secret=True)
    except DecodeError as error:
        raise ExportError(f"{path} is not a file with a cabal key: {error.reason}") from None


_ALL: Final = Bounds()


class CableReader(DataSourceReader):
    """Reader of one table. It is sent to every task, so it does not contain the list of inputs."""

    def __init__(self, wanted: SourceOptions) -> None:
        self.wanted = wanted
        self.bounds = wanted.bounds
        if wanted.table == "deletions":
            self.bounds = self.bounds._replace(types=frozenset({DELETE}))

    def partitions(self) -> list[InputPartition]:
        """Return a partition for each input that may contain rows.

        Raises the errors of `read_sources`.
        """
        sources = read_sources(self.wanted.exports, self.wanted.archives)
        return [InputPartition((sources.dialect, source)) for source in sources.inputs if self._has_rows(source)]

    def _has_rows(self, source: Input) -> bool:
        if self.wanted.table == "posts" and isinstance(source, SegmentInput) and source.segment.kind != "posts":
            return False
        return self.bounds.may_hold(source)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one input. Raises the errors of `rows_of`."""
        if partition.value is None:  # Spark requests one partition if the list is empty
            return
        dialect, source = partition.value
        yield from rows_of(dialect, source, self.wanted.table, self.wanted.columns, self.bounds)


class PushingReader(CableReader):
    """Reader that also uses bounds from the filters of a query.

    Spark 4.3 keeps one list of partitions for a DataFrame, the list for the last filters. Another query of the same
    DataFrame, or another part of the same query, then misses rows. So use this reader only for a DataFrame that one query
    reads once. An option selects it. Without the option, Spark applies all filters itself.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Narrow the bounds by `filters`. Return all filters for Spark to apply: segments contain other posts too."""
        for each in filters:
            bounds = self.bounds.narrowed(each)
            # The type in `deletions` is the type of the target, which is not in the manifest.
            self.bounds = bounds if self.wanted.table == "posts" else bounds._replace(types=self.bounds.types)
        return filters


def rows_of(
    dialect: Dialect,
    source: Input,
    table: str,
    columns: Mapping[str, Column],
    bounds: Bounds = _ALL,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `table` from one input: the posts or the deletions within `bounds`.

    Archives are verified, including signatures. Raises ExportError or ArchiveError for a damaged input, and
    StorageError if reading fails.
    """
    if not isinstance(source, SegmentInput):
        with tempfile.TemporaryDirectory() as scratch:  # `problem` records a verified archive there
            problem = source.problem(LocalFolder(Path(scratch)))
        if problem is not None:
            raise source.error(problem)
    types = frozenset({DELETE}) if table == "deletions" else bounds.types
    for raws, stones in source.blocks():
        with gc_paused():
            chosen = raws if types is None else [raw for raw in raws if peek_type(raw) in types]
            posts = bounds.choose(_decoded(dialect, chosen))
            rows: Sequence[Any] = posts
            if table == "deletions":
                told = [Deletion.of_tombstone(stone) for stone in stones if stone.is_effective]
                told = [each for each in told if bounds.first_ms <= each.timestamp_ms <= bounds.last_ms]
                rows = [*chain.from_iterable(map(Deletion.signed, posts)), *told]
            if rows:
                yield batch_of(columns, rows)


def _decoded(dialect: Dialect, raws: list[bytes]) -> list[Post]:
    posts = []
    for raw in raws:
        try:
            post = decode_post(raw, dialect)
        except DecodeError:
            continue
        if not post.is_local_only:
            posts.append(post)
    return posts
