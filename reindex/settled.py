"""Settled tables: the result of all posts in exports and archives, as DataFrames.

    posts          every post that is not deleted
    messages       every text, with the current name of its author
    topics         every topic that was set; `is_current` marks the current topics
    members        the members of each channel
    users          every author of a post
    channels       every channel, its topic and its counts
    deletions      every post that its author deleted

The rules are the same as for views: a post is dead if a post/delete by its own author names it. Of several posts the
latest by (timestamp, hash) decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from cablestore.files import Location
from cablestore.protocol.body import MEMBERSHIP_TYPES, TYPE_NAMES
from cablestore.reindex.columns import DELETIONS, IN_CHANNELS, SETTLED, ddl_of
from cablestore.reindex.inputs import ArchiveSource
from cablestore.reindex.job import Drops
from cablestore.reindex.prepare import JobSources, read_sources
from cablestore.reindex.source import TABLES, rows_of
from cablestore.reindex.stages import shares_for
from cablestore.reindex.workers import in_worker

_PLACE: Final = ("timestamp", "hash")
"""Columns that order posts: the later post has the greater pair. Hexadecimal hashes sort like their bytes."""


@dataclass(frozen=True)
class Tables:
    """Settled tables. docs/reference/tables.md describes their columns."""

    posts: DataFrame
    messages: DataFrame
    topics: DataFrame
    members: DataFrame
    users: DataFrame
    channels: DataFrame
    deletions: DataFrame


def tables(
    spark: SparkSession,
    exports: Sequence[Location] = (),
    *,
    archives: Sequence[ArchiveSource] = (),
    drops: Drops | None = None,
) -> Tables:
    """Return the tables of the union of all posts in exports and archives, without deleted posts.

    Exports are paths or URIs. Posts that `drops` selects are omitted, as if a store had discarded them. Each use of a
    table reads the files again. A program that uses several tables should persist them, or write them first like
    `cablestore tables`.

    Raises ExportError or ArchiveError if an export or archive is invalid.
    """
    sources = read_sources(exports, archives)
    return settle(found_posts(spark, sources), found_deletions(spark, sources), drops or Drops())


def found_deletions(spark: SparkSession, sources: JobSources) -> DataFrame:
    """Return the deletions in all files."""
    return _said(spark, sources, "deletions", tuple(DELETIONS))


def found_posts(spark: SparkSession, sources: JobSources) -> DataFrame:
    """Return each post of all files once."""
    return _said(spark, sources, "posts", tuple(SETTLED["posts"])).dropDuplicates(["hash"])


def settle(found: DataFrame, said: DataFrame, drops: Drops) -> Tables:
    """Return all tables, given all posts and deletions of files. `found` and `said` are read several times."""
    signed = said.where("is_signed")
    named = signed.select(fn.col("target").alias("hash"), fn.col("author").alias("deleter")).distinct()
    is_named = (found.hash == named.hash) & (found.author == named.deleter) & (found.type != "delete")
    live = found.join(named, is_named, "left_anti").where(~_is_dropped(drops))
    return Tables(live, **_derived(live, _deletions(found, signed, said)))


def _said(spark: SparkSession, sources: JobSources, table: str, names: Sequence[str]) -> DataFrame:
    """Return the columns `names` of the rows of `table` in all inputs.

    Each task reads several inputs, because a task costs Spark a tenth of a second.
    """
    dialect, inputs = sources.dialect, sources.inputs
    shares = max(min(shares_for(inputs), len(inputs)), 1)
    columns = {name: TABLES[table][name] for name in names}

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for share in batch.column(0).to_pylist():
                for source in inputs[share::shares]:
                    yield from rows_of(dialect, source, table, columns)

    return spark.range(0, shares, 1, shares).mapInArrow(in_worker(task), ddl_of(columns))


def _is_dropped(drops: Drops) -> Column:
    """Return the condition for dropping a post.

    The condition excludes post/deletes, because they keep other posts deleted.
    """
    of_authors = fn.col("author").isin([author.hex() for author in drops.authors])
    of_channels = fn.coalesce(fn.col("channel").isin(list(drops.channels)), fn.lit(False))
    return (fn.col("type") != "delete") & (of_authors | of_channels | (fn.col("timestamp") < drops.before_ms))


def _deletions(posts: DataFrame, signed: DataFrame, said: DataFrame) -> DataFrame:
    """Return the effective deletions: of posts in the files, and of posts that only a tombstone describes.

    `said` are all deletions in the files, `signed` the deletions in post/deletes. A tombstone counts if its post/delete
    is in the files and its target is not. If the target is in the files, the columns contain its fields.
    """
    targets = posts.where("type != 'delete'").select(
        fn.col("hash").alias("target"),
        "author",
        "type",
        "channel",
        fn.col("timestamp").alias("target_timestamp"),
        fn.lit(b"").alias("skeleton"),
    )
    seen = signed.select("target", "author", *_PLACE, "time").join(targets, ["target", "author"])
    keys = ["target", "author", *_PLACE]
    told = said.where("not is_signed").join(signed.select(*keys), keys, "left_semi")
    told = told.join(posts.select(fn.col("hash").alias("target")), "target", "left_anti").select(*seen.columns)
    # If a post has several deletions and different tombstones, the first deletion and the smallest skeleton count.
    first = signed.join(seen.unionByName(told).select("target", "author").distinct(), ["target", "author"])
    first = first.groupBy("target", "author").agg(*(_of(fn.min_by, name) for name in (*_PLACE, "time")))
    bones = ("type", "channel", "target_timestamp")
    about = seen.unionByName(told).groupBy("target", "author")
    return about.agg(*(fn.min_by(name, "skeleton").alias(name) for name in bones)).join(first, ["target", "author"])


# --- tables that correspond to views ---------------------------------------------------------------


def _derived(posts: DataFrame, deletions: DataFrame) -> dict[str, DataFrame]:
    infos = posts.where("type = 'info'")
    named = infos.groupBy("author").agg(_of(fn.max_by, "name")).where("name is not null")

    def with_names(table: DataFrame) -> DataFrame:
        """Add the author's current name, or the public key in hexadecimal for an author without a name."""
        return table.join(named, "author", "left").withColumn("name", fn.coalesce("name", "author"))

    here = posts.where(fn.col("type").isin(IN_CHANNELS))
    topics = _topics(posts)
    members = _members(here)
    authors = posts.groupBy("author").agg(fn.count("*").alias("posts"), *_first_and_last())
    found = {
        "messages": with_names(posts.where("type = 'text'").drop("name")),
        "topics": with_names(topics),
        "members": with_names(members),
        "users": with_names(authors),
        "channels": _channels(here, topics, members),
        "deletions": with_names(deletions),
    }
    return {name: table.select(*SETTLED[name]) for name, table in found.items()}


def _topics(posts: DataFrame) -> DataFrame:
    newest_first = Window.partitionBy("channel").orderBy(*(fn.desc(name) for name in _PLACE))
    topics = posts.where("type = 'topic'").drop("name")
    return topics.withColumn("is_current", fn.row_number().over(newest_first) == 1)


def _members(here: DataFrame) -> DataFrame:
    """Return the users whose latest post in a channel is not a post/leave. A text and a topic imply joining."""
    decisive = here.where(fn.col("type").isin([TYPE_NAMES[number] for number in MEMBERSHIP_TYPES]))
    latest = decisive.groupBy("channel", "author").agg(*(_of(fn.max_by, name) for name in ("type", *_PLACE, "time")))
    return latest.where("type != 'leave'")


def _channels(here: DataFrame, topics: DataFrame, members: DataFrame) -> DataFrame:
    """Return each channel with a join, leave, text or topic: its counts, times, topic and number of members."""
    counts = [fn.count_if(fn.col("type") == kind).alias(f"{kind}s") for kind in IN_CHANNELS]
    now = topics.where("is_current").select("channel", "topic")
    joined = members.groupBy("channel").agg(fn.count("*").alias("members"))
    found = here.groupBy("channel").agg(*counts, *_first_and_last()).join(now, "channel", "left")
    found = found.join(joined, "channel", "left")
    return found.withColumn("topic", fn.coalesce("topic", fn.lit(""))).fillna(0, ["members"])


def _first_and_last() -> list[Column]:
    return [fn.min("time").alias("first_post"), fn.max("time").alias("last_post")]


def _of(which: Callable[[str, Column], Column], name: str) -> Column:
    """Return the column `name` of the earliest or latest row: `which` is `min_by` or `max_by`."""
    return which(name, fn.struct(*_PLACE)).alias(name)
