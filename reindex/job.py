"""Descriptions of jobs, which are sent to every worker. They contain all data that the tasks need."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from cablestore.errors import ReindexError, StorageError
from cablestore.files import Location, ObjectFolder, folder_of
from cablestore.index.view import Catalog
from cablestore.protocol.body import DELETE
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.post import Post
from cablestore.reindex.causes import SparkError
from cablestore.reindex.inputs import Input
from cablestore.reprs import hex_repr

SPARK_LOG: Final = "spark.log"
"""Name of Spark's log in the folder on this machine."""

_MARK: Final = "cablestore-work"
_REPORT_VERSION: Final = 3
"""Version of the reports of tasks. Finished work of another version is not used."""


def shared(location: Location) -> ObjectFolder:
    """Return the folder of a path or URI. Paths become absolute, because workers have other working directories."""
    folder = folder_of(location)
    return folder_of(folder.path.absolute()) if folder.is_local else folder


def claim_folder(folder: ObjectFolder) -> ObjectFolder:
    """Create a work folder, or reuse an earlier one. The job empties and removes it.

    Raises ReindexError if the folder contains other files.
    """
    if not folder.exists(_MARK):
        if not folder.is_empty() and not is_begun(folder, _MARK):
            raise ReindexError(
                f"{folder} is not a work folder of cablestore, and its content would be removed. Choose a new folder"
            )
        folder.write(_MARK, b"")
    return folder


def is_begun(folder: ObjectFolder, mark: str) -> bool:
    """Return True if a process was killed while it wrote the folder's first file, `mark`, under a temporary name."""
    with suppress(StorageError):  # the folder is a file
        return bool(folder.names(f"{mark}.*.tmp"))
    return False


def claim_work(work: Location, local: Path | None) -> tuple[ObjectFolder, Path]:
    """Claim the folder `work`, and the folder on this machine that a job needs. Return both.

    They are the same folder, unless `work` is a URI. Then the second folder is `local`, which is required.
    """
    folder = claim_folder(shared(work))
    if folder.is_local:
        return folder, folder.path
    if local is None:
        raise ReindexError(f"{folder} is not on this machine. Set `local` to a folder for Spark's own files")
    claim_folder(folder_of(local))
    return folder, local.absolute()


def remove_work(folder: ObjectFolder, local: Path) -> None:
    """Remove the folders that `claim_work` claimed. Errors are ignored, because the job is finished."""
    with suppress(StorageError):
        folder.remove_all()
    shutil.rmtree(local, ignore_errors=True)


@contextmanager
def temporary_work(folder: ObjectFolder, local: Path) -> Iterator[None]:
    """Remove the folders of `claim_work` after the body, but keep the log of Spark if an error may name it."""
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
    """Remove everything in a work folder except its mark and the logs of Spark."""
    for path in sorted(local.rglob("*"), reverse=True):  # files before their folders
        with suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            elif path.name not in (_MARK, SPARK_LOG):
                path.unlink()


@dataclass(frozen=True, slots=True)
class Drops:
    """Posts to drop as if they had been discarded.

    A post/delete is never dropped, because it keeps other posts deleted.
    """

    authors: frozenset[bytes] = frozenset()
    channels: frozenset[str] = frozenset()
    before_ms: int = 0

    __repr__ = hex_repr

    def reason(self, post: Post) -> str | None:
        """Return why a post is dropped, or None if it is kept."""
        if post.type == DELETE:
            return None
        if post.author in self.authors:
            return "by an author to drop"
        if post.channel is not None and post.channel in self.channels:
            return "in a channel to drop"
        return "dated before the time to keep" if post.timestamp_ms < self.before_ms else None

    def __bool__(self) -> bool:
        """Return True if any post may be dropped."""
        return bool(self.authors or self.channels or self.before_ms)


@dataclass(frozen=True)
class ShuffledJob:
    """A job whose inputs are shuffled: posts go to one of `partitions` by their hashes.

    Workers write their results to `folder`. The driver and all workers must have access to it and to the inputs.
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
        """Return further values that distinguish this job from others of its kind, as JSON values."""
        return []

    def fingerprint(self) -> str:
        """Return a hash that identifies this job. Finished work of a job with the same fingerprint is reused."""
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
    """A reindexing. Rows go to buckets by their keys.

    `boundaries` lists the first key of each bucket except the first. `wanted` is true for each bucket that is built.
    """

    kind: ClassVar[str] = "Job"
    catalog: Catalog
    boundaries: tuple[bytes, ...]
    wanted: tuple[bool, ...]
    drops: Drops = field(default_factory=Drops)
    summaries: tuple[int, ...] = ()
    """Summaries to build, by their numbers in the catalog."""
    wants_records: bool = True
    """True if the job writes the rows with the posts themselves."""

    def parts(self) -> list[Any]:
        """Return the values on which the rows depend besides the inputs, as JSON values."""
        return [
            sorted(self.catalog.versions.items()),
            [boundary.hex() for boundary in self.boundaries],
            self.wanted,
            sorted(author.hex() for author in self.drops.authors),
            sorted(self.drops.channels),
            self.drops.before_ms,
        ]
