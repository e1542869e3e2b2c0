"""What a job reads: segments of exports, and whatever else answers like one. `archives` has those of archives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

from cablestore.errors import CableStoreError, CorruptExportError, StorageError
from cablestore.export.manifest import Segment, read_posts, read_tombstones
from cablestore.export.segment import segment_blake3
from cablestore.index.tombstone import Tombstone

Block = tuple[list[bytes], list[Tombstone]]
"""Whole posts, not decoded, and tombstones: some of what an input holds."""


class Input(Protocol):
    """What one task reads whole. It is sent to every worker, which finds its file under the same path."""

    error: ClassVar[type[CableStoreError]]
    """What is raised where it is damaged."""

    @property
    def path(self) -> Path:
        """The file that it is in."""

    @property
    def name(self) -> str:
        """What it is called where it is left out."""

    @property
    def digest(self) -> str:
        """What tells its content from any other."""

    @property
    def posts(self) -> int:
        """How many posts it holds."""

    def problem(self, work: Path) -> str | None:
        """Return what is wrong with it, None where it may be read. `work` is the job's folder. Raises nothing of ours."""

    def blocks(self) -> Iterator[Block]:
        """Yield what it holds. Raises CableStoreError where it is not what it was when `problem` went through it."""


def posts_of(inputs: Iterable[Input]) -> int:
    """Return how many posts inputs hold together."""
    return sum(source.posts for source in inputs)


@dataclass(frozen=True, slots=True)
class SegmentInput:
    """One segment of one export. Its checksum is checked; what it holds is believed."""

    export: Path
    segment: Segment
    error: ClassVar[type[CableStoreError]] = CorruptExportError

    @property
    def path(self) -> Path:
        """Where the segment is."""
        return self.export / self.segment.file

    @property
    def name(self) -> str:
        """The segment's path."""
        return str(self.path)

    @property
    def digest(self) -> str:
        """The BLAKE3 that the manifest names."""
        return self.segment.blake3

    @property
    def posts(self) -> int:
        """How many posts the manifest says that it holds."""
        return self.segment.items if self.segment.kind == "posts" else 0

    def problem(self, work: Path) -> str | None:  # noqa: ARG002 - archives leave a note there
        """Return what is wrong with the segment's checksum."""
        try:
            found = segment_blake3(self.path)
        except StorageError as error:
            return str(error)
        if found == self.segment.blake3:
            return None
        return f"{self.path} is damaged: its BLAKE3 is {found}, its manifest says {self.segment.blake3}"

    def blocks(self) -> Iterator[Block]:
        """Yield what the segment holds, block by block. Raises CorruptExportError, StorageError."""
        if self.segment.kind == "posts":
            for raws in read_posts(self.export, self.segment):
                yield raws, []
            return
        for stones in read_tombstones(self.export, self.segment):
            yield [], stones


@dataclass(frozen=True, slots=True)
class ArchiveSource:
    """The archives of one community: those below `folder` whose index the node with this 32-byte key signed.

    `cabal_key` opens them where they are encrypted; archives that are public need none.
    """

    folder: Path
    control_key: bytes
    cabal_key: bytes | None = field(default=None, repr=False)
