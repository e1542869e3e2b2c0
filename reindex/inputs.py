"""Inputs of a job: the protocol `Input`, and segments of exports. Archives are in `archive_input`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

from cablestore.errors import CableStoreError, CorruptExportError, StorageError
from cablestore.export.manifest import Segment, read_posts, read_tombstones
from cablestore.export.segment import segment_blake3
from cablestore.index.tombstone import Tombstone

Block = tuple[list[bytes], list[Tombstone]]
"""Part of an input: whole encoded posts, and tombstones."""


class Input(Protocol):
    """Unit that one task reads completely. It is sent to every worker, which finds its file under the same path."""

    error: ClassVar[type[CableStoreError]]
    """Type of the error if it is damaged."""

    @property
    def path(self) -> Path:
        """Path of its file."""

    @property
    def name(self) -> str:
        """Name in messages, if it is left out."""

    @property
    def digest(self) -> str:
        """Hash that identifies its content."""

    @property
    def posts(self) -> int:
        """Number of posts in it."""

    def glance(self, work: Path) -> str | None:
        """Return what is wrong with it as far as can be told without reading what `blocks` verifies. See `problem`."""

    def problem(self, work: Path) -> str | None:
        """Return what is wrong with it, None if it is good. `work` is the job's folder. Raises no CableStoreError."""

    def blocks(self) -> Iterator[Block]:
        """Yield its content. Raises CableStoreError, before anything is yielded, if what `glance` leaves out is wrong.

        Raises it at any time if the input changed after `glance`.
        """


def refusal(source: Input, problem: str) -> CableStoreError:
    """Return the error for a damaged input that is not to be left out."""
    return source.error(f"{problem}. Copy it again, or leave it out with --skip-corrupt")


def posts_of(inputs: Iterable[Input]) -> int:
    """Return the number of posts of all inputs."""
    return sum(source.posts for source in inputs)


@dataclass(frozen=True, slots=True)
class SegmentInput:
    """Segment of an export. Its checksum is verified; its content is trusted."""

    export: Path
    segment: Segment
    error: ClassVar[type[CableStoreError]] = CorruptExportError

    @property
    def path(self) -> Path:
        """Path of the segment."""
        return self.export / self.segment.file

    @property
    def name(self) -> str:
        """Path of the segment."""
        return str(self.path)

    @property
    def digest(self) -> str:
        """BLAKE3 from the manifest."""
        return self.segment.blake3

    @property
    def posts(self) -> int:
        """Number of posts according to the manifest."""
        return self.segment.items if self.segment.kind == "posts" else 0

    def glance(self, work: Path) -> str | None:
        """Return an error if the segment is missing or has another size. Its checksum is verified while it is read."""
        with suppress(OSError):
            if self.path.stat().st_size == self.segment.size_bytes:
                return None
        return self.problem(work)

    def problem(self, work: Path) -> str | None:  # noqa: ARG002 - only archives write there
        """Return an error if the checksum of the segment is wrong."""
        try:
            found = segment_blake3(self.path)
        except StorageError as error:
            return str(error)
        if found == self.segment.blake3:
            return None
        return f"{self.path} is damaged: its BLAKE3 is {found}, its manifest says {self.segment.blake3}"

    def blocks(self) -> Iterator[Block]:
        """Yield the content of the segment block by block. Raises CorruptExportError, StorageError."""
        if self.segment.kind == "posts":
            for raws in read_posts(self.export, self.segment):
                yield raws, []
            return
        for stones in read_tombstones(self.export, self.segment):
            yield [], stones


@dataclass(frozen=True, slots=True)
class ArchiveSource:
    """Archives of one community: those below `folder` whose index the node with this 32-byte key signed.

    `cabal_key` decrypts them; public archives need none.
    """

    folder: Path
    control_key: bytes
    cabal_key: bytes | None = field(default=None, repr=False)
