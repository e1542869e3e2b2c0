"""Preparation of a job: read manifests and indexes of its inputs, and split the work into even shares."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from cablestore.errors import ArchiveError, CableStoreError, DecodeError, ExportError
from cablestore.export.manifest import Manifest, Segment, read_manifest
from cablestore.extras import naming_extras
from cablestore.files import Location, ObjectFolder, folder_of
from cablestore.index.census import summaries
from cablestore.index.database import Row
from cablestore.index.derive import Derivation
from cablestore.index.parallel import partitions_for
from cablestore.index.reader import DATA_PREFIX
from cablestore.index.runs import choose_boundaries
from cablestore.index.view import REVERSE_NAME, REVERSE_PREFIX, Catalog
from cablestore.limits import MAX_BUCKET_SIZE_BYTES
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.keys import after_prefix
from cablestore.protocol.post import Post, decode_post
from cablestore.reindex.inputs import ArchiveSource, Input, SegmentInput, posts_of, rejection
from cablestore.reindex.job import Drops, ReindexJob, shared

_SAMPLED_INPUTS: Final = 6
_SAMPLED_POSTS: Final = 15_000


@dataclass(frozen=True, slots=True)
class JobSources:
    """Sources of a job, of one dialect: the `manifests` of exports, and `inputs`, their segments and the archives."""

    dialect: Dialect
    manifests: list[Manifest]
    inputs: tuple[Input, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """Sorted pieces of rows that were derived from a sample of posts, and the number of these posts."""

    pieces: list[Row]
    posts: int


def read_sources(exports: Sequence[Location], archives: Sequence[ArchiveSource] = ()) -> JobSources:
    """Read manifests of exports and verify indexes of archives.

    Raises ExportError or ArchiveError if one is invalid, or if their dialects differ.
    """
    if not exports and not archives:
        raise ExportError("no export given: a reindexing starts from an export. Create one with `cablestore export`")
    manifests = [read_manifest(shared(export)) for export in exports]
    found: list[tuple[ObjectFolder, Dialect, Sequence[Input]]] = [
        (each.source, each.dialect, [SegmentInput(each.source, segment) for segment in _derivable(each)])
        for each in manifests
    ]
    found += [(folder_of(source.folder), *_read_archives(source)) for source in archives]
    first, dialect, _ = found[0]
    for number, (folder, other, _) in enumerate(found):
        if other != dialect:
            kind = ExportError if number < len(exports) else ArchiveError
            raise kind(
                f"{folder} has the dialect {other.name}, but {first} has {dialect.name}. A store has one dialect. "
                "Reindex them separately"
            )
    return JobSources(dialect, manifests, tuple(each for _, _, inputs in found for each in inputs))


def _derivable(manifest: Manifest) -> list[Segment]:
    """Return the segments from which rows are derived, without the claims of roles, which are stored later."""
    return [segment for segment in manifest.segments if segment.kind != "consents"]


def _read_archives(source: ArchiveSource) -> tuple[Dialect, list[Input]]:
    with naming_extras("archives need", ArchiveError, "reindex"):
        from cablestore.reindex.archive_input import read_archives  # noqa: PLC0415 - an extra, cablestore[archive]
    return read_archives(source)


def make_job(
    inputs: Sequence[Input],
    folder: ObjectFolder,
    dialect: Dialect,
    catalog: Catalog,
    drops: Drops,
    views: frozenset[str],
    sample: Sample,
) -> ReindexJob:
    """Split the work into partitions of hashes and buckets of keys. `views` are the views to build; empty means all."""
    wanted = _wanted_prefixes(catalog, views)
    posts = posts_of(inputs)
    size_bytes = sum(len(key) + len(value) for key, value in sample.pieces) * posts / max(sample.posts, 1)
    buckets = 1 + int(size_bytes / MAX_BUCKET_SIZE_BYTES)
    boundaries = choose_boundaries(sample.pieces, buckets, _edges(catalog))
    return ReindexJob(
        folder=folder,
        dialect=dialect,
        catalog=catalog,
        inputs=tuple(inputs),
        partitions=partitions_for(posts),
        boundaries=tuple(boundaries),
        wanted=tuple(_is_wanted(start, wanted) for start in (b"", *boundaries)),
        drops=drops,
        summaries=tuple(number for number, summary in enumerate(summaries(catalog)) if summary.prefix in wanted),
        wants_records=not views,
    )


def take_sample(
    inputs: Sequence[Input], folder: ObjectFolder, dialect: Dialect, catalog: Catalog, *, skip_corrupt: bool = False
) -> Sample:
    """Return a sample of the posts of some inputs. Raises the error of a damaged input unless `skip_corrupt`."""
    having = [source for source in inputs if source.posts]
    chosen = having[:: 1 + len(having) // _SAMPLED_INPUTS]
    step = 1 + sum(source.posts for source in chosen) // _SAMPLED_POSTS
    posts: dict[bytes, Post] = {}
    for source in chosen:
        try:
            for raws, _ in source.blocks():
                for raw in raws[::step]:
                    with suppress(DecodeError):
                        post = decode_post(raw, dialect)
                        if not post.is_local_only:
                            posts[post.hash] = post
        except CableStoreError as error:
            if not skip_corrupt:
                raise rejection(source, source.problem(folder) or str(error)) from None
    derivation = Derivation(catalog)
    for digest in sorted(posts):
        derivation.post(posts[digest])
    derivation.reverse = []  # buckets do not contain these rows
    return Sample(derivation.take(), len(posts))


def _edges(catalog: Catalog) -> set[bytes]:
    """Return keys at which a bucket must begin: each view, and the ends of ranges with separate segments."""
    edges = {prefix for prefix, _ in catalog.prefixes}
    return edges | {after_prefix(prefix) for prefix in (DATA_PREFIX, REVERSE_PREFIX)}


def _wanted_prefixes(catalog: Catalog, views: frozenset[str]) -> list[bytes]:
    unknown = views - catalog.versions.keys()
    if unknown:
        raise ExportError(f"view not found: {', '.join(sorted(unknown))}. The views are {', '.join(catalog.versions)}")
    # The reverse hash map contains the keys of all other views, so it is built with each of them.
    names = views | {REVERSE_NAME} if views else frozenset(catalog.versions)
    return [prefix for prefix, name in catalog.prefixes if name in names]


def _is_wanted(start: bytes, wanted: Sequence[bytes]) -> bool:
    """Return True if the bucket that begins at `start` is in a wanted range.

    The first bucket, before all views, is empty.
    """
    return any(prefix <= start < after_prefix(prefix) for prefix in wanted)
