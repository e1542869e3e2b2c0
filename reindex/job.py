"""Descriptions of jobs: everything that their tasks need, sent to every worker."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from cablestore.errors import ReindexError, SparkError, StorageError
from cablestore.files import Location, ObjectFolder, folder_of
from cablestore.index.view import Catalog
from cablestore.protocol.body import DELETE
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.post import Post
from cablestore.reindex.inputs import Input
from cablestore.reprs import hex_repr

SPARK_LOG: Final = "spark.log"
"""Name of the log of Spark in the folder on this machine."""

_MARK: Final = "cablestore-work"
_REPORT_VERSION: Final = 3
"""Version of the reports of tasks. Work of another version, with other parts or without sums of pieces, is not used."""


def shared(location: Location) -> ObjectFolder:
    """Return the folder that a path or URI names on every machine: workers have other working directories."""
    folder = folder_of(location)
    return folder_of(folder.path.absolute()) if folder.is_local else folder


def claim_folder(folder: ObjectFolder) -> ObjectFolder:
    """Create a work folder, or reuse one from before. The job will empty and remove it.

    Raises ReindexError if the folder holds anything else.
    """
    if not folder.exists(_MARK):
        if not folder.is_empty() and not is_begun(folder, _MARK):
            raise ReindexError(
                f"{folder} is not a work folder of cablestore, and its content would be removed. Name a new folder"
            )
        folder.write(_MARK, b"")
    return folder


def is_begun(folder: ObjectFolder, mark: str) -> bool:
    """Tell whether a process was killed while it wrote a folder's first file, which then has a temporary name."""
    with suppress(StorageError):  # it is a file
        return bool(folder.names(f"{mark}.*.tmp"))
    return False


def claim_work(work: Location, local: Path | None) -> tuple[ObjectFolder, Path]:
    """Claim a work folder, and the folder on this machine that a job needs: the same one, or `local` for a URI."""
    folder = claim_folder(shared(work))
    if folder.is_local:
        return folder, folder.path
    if local is None:
        raise ReindexError(f"{folder} is not on this machine: name a folder that is, for Spark's own files")
    claim_folder(folder_of(local))
    return folder, local.absolute()


def remove_work(folder: ObjectFolder, local: Path) -> None:
    """Remove what `claim_work` claimed. What cannot be removed is left: the work itself is done."""
    with suppress(StorageError):
        folder.remove_all()
    shutil.rmtree(local, ignore_errors=True)


@contextmanager
def temporary_work(folder: ObjectFolder, local: Path) -> Iterator[None]:
    """Remove what `claim_work` claimed after the body, but not the log of Spark if an error may name it."""
    try:
        yield
    except (SparkError, StorageError):
        _remove_all_but_logs(local)
        if not folder.is_local:
            with suppress(StorageError):
                folder.remove_all()
        raise
    except BaseException:
        remove_work(folder, local)
        raise
    remove_work(folder, local)


def _remove_all_but_logs(local: Path) -> None:
    """Remove everything in a work folder but its mark and the logs of Spark in it."""
    for path in sorted(local.rglob("*"), reverse=True):  # what is in a folder before the folder
        with suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            elif path.name not in (_MARK, SPARK_LOG):
                path.unlink()


@dataclass(frozen=True, slots=True)
class Drops:
    """Posts to leave out as if they had been discarded. Never a post/delete: it keeps other posts deleted."""

    authors: frozenset[bytes] = frozenset()
    channels: frozenset[str] = frozenset()
    before_ms: int = 0

    __repr__ = hex_repr

    def reason(self, post: Post) -> str | None:
        """Return why a post is left out, None if it is not."""
        if post.type == DELETE:
            return None
        if post.author in self.authors:
            return "by an author to drop"
        if post.channel is not None and post.channel in self.channels:
            return "in a channel to drop"
        return "dated before the time to keep" if post.timestamp_ms < self.before_ms else None

    def __bool__(self) -> bool:
        """Tell whether anything is left out."""
        return bool(self.authors or self.channels or self.before_ms)


@dataclass(frozen=True)
class ShuffledJob:
    """Job whose inputs are shuffled: posts go to one of `partitions` by their hashes.

    Workers write their results to `folder`. They and the driver must all see it and the inputs.
    """

    kind: ClassVar[str]
    """Name of this kind of job in fingerprints, which are stored."""
    folder: ObjectFolder
    dialect: Dialect
    inputs: tuple[Input, ...]
    partitions: int

    def partition_of(self, digest: bytes) -> int:
        """Return the partition of a 32-byte hash."""
        return int.from_bytes(digest[:4], "big") * self.partitions >> 32

    def parts(self) -> list[Any]:
        """Return what else distinguishes this job from others of its kind, as JSON values."""
        return []

    def fingerprint(self) -> str:
        """Return a hash that identifies this job. Finished work of a job with the same fingerprint is used again."""
        parts = [
            _REPORT_VERSION,
            self.kind,
            self.dialect.name,
            [source.digest for source in self.inputs],
            self.partitions,
            *self.parts(),
        ]
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class ReindexJob(ShuffledJob):
    """One reindexing. Rows go to buckets by their keys.

    `boundaries` has the first key of each bucket but the first, `wanted` whether a bucket is built at all.
    """

    kind: ClassVar[str] = "Job"
    catalog: Catalog
    boundaries: tuple[bytes, ...]
    wanted: tuple[bool, ...]
    drops: Drops = field(default_factory=Drops)
    summaries: tuple[int, ...] = ()
    """Summaries to make, by their numbers in the catalog."""
    wants_records: bool = True
    """Whether to write the rows that hold the posts themselves."""

    def parts(self) -> list[Any]:
        """Return everything that the rows depend on."""
        return [
            sorted(self.catalog.versions.items()),
            [boundary.hex() for boundary in self.boundaries],
            self.wanted,
            sorted(author.hex() for author in self.drops.authors),
            sorted(self.drops.channels),
            self.drops.before_ms,
        ]
