"""Sorting more records than memory holds: sorted runs on the disk, and their merge. Records are bytes and sort as such.

A run's file is a row of blocks: size u32 big-endian, then so many bytes of a msgpack array of records.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

import msgpack

from cablestore.errors import CorruptExportError
from cablestore.files import storage_errors, whole_file

_BLOCK_SIZE_BYTES: Final = 65_536
"""What the merge holds of each run. Of a hundred million posts, 600 runs, that is 40 MB."""

_SIZE: Final = struct.Struct(">I")


def cut(batches: Iterable[list[bytes]], most_bytes: int) -> Iterator[list[bytes]]:
    """Cut records into blocks, each ending with the record that brings it to `most_bytes`, wherever batches end."""
    held: list[bytes] = []
    for batch in batches:
        held += batch
        ends = list(accumulate(map(len, held)))
        start = taken = 0
        while (stop := bisect_left(ends, taken + most_bytes) + 1) <= len(held):
            yield held[start:stop]
            start, taken = stop, ends[stop - 1]
        del held[:start]
    if held:
        yield held


def write_run(path: Path, records: list[bytes]) -> None:
    """Sort records and write them. The file has its name only once it is whole and on the disk."""
    records.sort()
    packer = msgpack.Packer()  # one buffer for all blocks
    with storage_errors(path), whole_file(path) as file:
        for block in cut([records], _BLOCK_SIZE_BYTES):
            data = packer.pack(block)
            file.write(_SIZE.pack(len(data)))
            file.write(data)


def merge(runs: Iterable[Path], after: bytes = b"") -> Iterator[list[bytes]]:
    """Yield the records of all runs that are greater than `after`, in order, in lists of no particular length.

    Raises CorruptExportError for a run that does not read as it was written.
    """
    readers = [_blocks(path) for path in runs]
    heads = [(_next_block(reader, after), reader) for reader in readers]
    while heads := [(block, reader) for block, reader in heads if block]:
        bound = min(block[-1] for block, _ in heads)
        merged: list[bytes] = []
        left = []
        for block, reader in heads:
            place = bisect_right(block, bound)
            merged += block[:place]
            left.append((block[place:] or _next_block(reader, after), reader))
        merged.sort()  # Python's sort takes sorted stretches as they are and merges them
        yield merged
        heads = left


def _next_block(blocks: Iterator[list[bytes]], after: bytes) -> Sequence[bytes]:
    """Return the next block with records greater than `after`, without the others; empty at the end."""
    for block in blocks:
        if block[-1] > after:
            return block[bisect_right(block, after) :]
    return ()


def _blocks(path: Path) -> Iterator[list[bytes]]:
    """Yield a run's blocks. The file is opened for each, so that a thousand runs are no thousand open files."""
    at = 0
    while True:
        with storage_errors(path), path.open("rb") as file:
            file.seek(at)
            header = file.read(_SIZE.size)
            data = file.read(_SIZE.unpack(header)[0]) if len(header) == _SIZE.size else header
        if not header:
            return
        try:
            yield msgpack.unpackb(data)
        except (ValueError, TypeError) as error:
            raise CorruptExportError(f"{path} is damaged: {error}. Remove its folder and begin anew") from None
        at += len(header) + len(data)
