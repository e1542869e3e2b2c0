"""What a job is to do: everything that its tasks need, sent to every worker."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from cablestore.errors import ReindexError
from cablestore.index.view import Catalog
from cablestore.protocol.body import DELETE
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.post import Post
from cablestore.reindex.inputs import Input

_MARK: Final = "cablestore-work"


def claim_folder(path: Path) -> Path:
    """Make a folder for work under way, or take one that was made so; it will be emptied and removed.

    Raises ReindexError for a folder that holds anything else.
    """
    if path.exists() and not (path / _MARK).exists() and (not path.is_dir() or any(path.iterdir())):
        raise ReindexError(
            f"{path} holds something that is no work of cablestore, and would be removed. Name a new folder"
        )
    path.mkdir(parents=True, exist_ok=True)
    (path / _MARK).touch()
    return path


@dataclass(frozen=True, slots=True)
class Drops:
    """Posts to leave out as if they had been discarded. A post/delete is never left out: it is what keeps others dead."""

    authors: frozenset[bytes] = frozenset()
    channels: frozenset[str] = frozenset()
    before_ms: int = 0

    def reason(self, post: Post) -> str | None:
        """Return why a post is left out, None where it is not."""
        if post.type == DELETE:
            return None
        if post.author in self.authors:
            return "by an author to drop"
        if post.channel is not None and post.channel in self.channels:
            return "in a channel to drop"
        return "dated before the time to keep" if post.timestamp_ms < self.before_ms else None

    def __bool__(self) -> bool:
        """Tell whether anything is to be dropped."""
        return bool(self.authors or self.channels or self.before_ms)


@dataclass(frozen=True)
class ShuffledJob:
    """What a job reads, and how posts go to `partitions` by their hashes.

    `folder` is where workers leave what they made; they and the driver must all see it and the inputs.
    """

    kind: ClassVar[str]
    """Name of this kind of job in fingerprints, which are stored."""
    folder: Path
    dialect: Dialect
    inputs: tuple[Input, ...]
    partitions: int

    def partition_of(self, digest: bytes) -> int:
        """Return the partition of a 32-byte hash."""
        return int.from_bytes(digest[:4], "big") * self.partitions >> 32

    def parts(self) -> list[Any]:
        """Return what else tells this job from others of its kind, as JSON can say it."""
        return []

    def fingerprint(self) -> str:
        """Return what tells this job from others: finished work of one with the same is used again."""
        parts = [
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

    `boundaries` has the key at which each bucket but the first begins, `wanted` whether a bucket is to be built at all.
    """

    kind: ClassVar[str] = "Job"
    catalog: Catalog
    boundaries: tuple[bytes, ...]
    wanted: tuple[bool, ...]
    drops: Drops = field(default_factory=Drops)
    summaries: tuple[int, ...] = ()
    """The summaries that are to be made, by their numbers in the catalog."""
    wants_records: bool = True
    """Whether the rows that hold the posts themselves are to be written."""

    def parts(self) -> list[Any]:
        """Return all that decides on the rows."""
        return [
            sorted(self.catalog.versions.items()),
            [boundary.hex() for boundary in self.boundaries],
            self.wanted,
            sorted(author.hex() for author in self.drops.authors),
            sorted(self.drops.channels),
            self.drops.before_ms,
        ]
