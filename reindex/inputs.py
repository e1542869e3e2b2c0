"""Inputs of a job: the protocol `Input`, and segments of exports. Archives are in `archive_input`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from cablestore.errors import CableStoreError, ExportError, StorageError
from cablestore.export.manifest import Segment, read_posts, read_tombstones
from cablestore.export.segment import segment_blake3
from cablestore.files import Location, MissingFileError, ObjectFolder
from cablestore.index.tombstone import Tombstone
from cablestore.reprs import hex_repr

Block = tuple[list[bytes], list[Tombstone]]
"""Part of an input: encoded posts, and tombstones."""


class Input(Protocol):
    """A unit that one task reads completely. Every worker finds it under the same path or URI."""

    error: ClassVar[type[CableStoreError]]
    """Type of the error for a damaged input."""

    @property
    def name(self) -> str:
        """Name in messages. It begins with the path or URI of the file."""

    @property
    def digest(self) -> str:
        """Hash that identifies the content."""

    @property
    def posts(self) -> int:
        """Number of posts in the input."""

    def quick_check(self, work: ObjectFolder) -> str | None:
        """Return the problem of a damaged input, or None. Unlike `problem`, it may omit checks that `blocks` makes."""

    def problem(self, work: ObjectFolder) -> str | None:
        """Return the problem of a damaged input, or None if it is valid. `work` is the job's folder.

        Raises StorageError, and no other CableStoreError, if an object store does not answer.
        """

    def blocks(self) -> Iterator[Block]:
        """Yield the content.

        Raises CableStoreError before the first block if a check that `quick_check` omits fails. If the input has
        changed since `quick_check`, it may raise later, too.
        """


def rejection(source: Input, problem: str) -> CableStoreError:
    """Return the error for a damaged input that must not be skipped."""
    return source.error(f"{problem}. Copy it again, or skip it with --skip-corrupt")


def fault_of(error: CableStoreError, folder: ObjectFolder) -> str:
    """Return the text of an error as the problem of an input in this folder.

    Raises the error if an object store did not answer, because the input may be valid.
    """
    if isinstance(error, StorageError) and not isinstance(error, MissingFileError) and not folder.is_local:
        raise error
    return str(error)


def posts_of(inputs: Iterable[Input]) -> int:
    """Return the number of posts of all inputs."""
    return sum(source.posts for source in inputs)


@dataclass(frozen=True, slots=True)
class SegmentInput:
    """A segment of an export. Its checksum is verified; its content is trusted."""

    export: ObjectFolder
    segment: Segment
    error: ClassVar[type[CableStoreError]] = ExportError

    @property
    def name(self) -> str:
        """Path or URI of the segment."""
        return str(self.export.file(self.segment.file))

    @property
    def digest(self) -> str:
        """BLAKE3 hash from the manifest."""
        return self.segment.blake3

    @property
    def posts(self) -> int:
        """Number of posts according to the manifest."""
        return self.segment.items if self.segment.kind == "posts" else 0

    def quick_check(self, work: ObjectFolder) -> str | None:
        """Return a problem if the segment is missing or has another size, otherwise None.

        `blocks` verifies the checksum.
        """
        with suppress(StorageError):
            if self.export.size(self.segment.file) == self.segment.size_bytes:
                return None
        return self.problem(work)

    def problem(self, work: ObjectFolder) -> str | None:  # noqa: ARG002 - only archives write there
        """Return a problem if the checksum of the segment is wrong, otherwise None."""
        try:
            found = segment_blake3(self.export.file(self.segment.file))
        except StorageError as error:
            return fault_of(error, self.export)
        if found == self.segment.blake3:
            return None
        return f"{self.name} is damaged: its BLAKE3 is {found}, expected {self.segment.blake3}"

    def blocks(self) -> Iterator[Block]:
        """Yield the content block by block. Raises ExportError if it is damaged, StorageError if reading fails."""
        if self.segment.kind == "posts":
            for raws in read_posts(self.export, self.segment):
                yield raws, []
            return
        for stones in read_tombstones(self.export, self.segment):
            yield [], stones


@dataclass(frozen=True, slots=True)
class ArchiveSource:
    """Archives of a community in `folder`, whose index is signed with the control node's 32-byte key.

    `cabal_key` decrypts them; it is None for public archives.
    """

    folder: Location
    control_key: bytes
    cabal_key: bytes | None = field(default=None, repr=False)

    __repr__ = hex_repr
