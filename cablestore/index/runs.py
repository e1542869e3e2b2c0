"""Runs: files of sorted pieces between the two steps of a derivation, split into buckets by ranges of keys.

A bucket is small enough to be sorted in memory. The file of a run:

    offset u64 big-endian of each bucket's end | the buckets, each a zstd frame of a msgpack array of [key, value]

All runs of a derivation have buckets of the same ranges. `boundaries` contains the first key of each bucket except the
first.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import accumulate, islice, pairwise
from operator import lt
from pathlib import Path
from typing import ClassVar, Final

import blake3
import msgpack

from cablestore import zstd
from cablestore.errors import DecodeError, ExportError
from cablestore.files import ObjectFolder, folder_of, for_each, storage_errors
from cablestore.index.database import Row
from cablestore.index.derive import Derivation, combine, key_of
from cablestore.index.reader import AFTER_HEX, DATA_PREFIX, Reader
from cablestore.index.view import Catalog
from cablestore.limits import MAX_BUCKET_SIZE_BYTES, MAX_RUN_SIZE_BYTES
from cablestore.protocol.post import decode_post

_OFFSET: Final = struct.Struct(">Q")
_SAMPLED_RANGES: Final = 256
_SAMPLED_POSTS: Final = 10_240
_HASH_SIZE_BYTES: Final = 16

AFTER_ALL: Final = b"\xff"
"""A key that sorts after the keys of all rows."""

_LEVEL: Final = -3
"""Compression level of zstd: a fast level, because runs are read only once and soon. Level 1 takes a third less space
and twice the time.
"""


def into_buckets(rows: list[Row], boundaries: Sequence[bytes]) -> list[list[Row]]:
    """Split sorted `rows` into buckets. `boundaries` contains the first key of each bucket except the first."""
    places = [0, *(bisect_left(rows, boundary, key=key_of) for boundary in boundaries), len(rows)]
    return [rows[start:stop] for start, stop in pairwise(places)]


def write_run(folder: ObjectFolder, name: str, buckets: Sequence[list[Row]]) -> list[int]:
    """Write one run. The file gets its name when it is complete. Return a hash of each bucket, see `bucket_hash`.

    Raises StorageError.
    """
    blobs = [zstd.compress(msgpack.packb(rows), level=_LEVEL) if rows else b"" for rows in buckets]
    ends = accumulate((len(blob) for blob in blobs), initial=_OFFSET.size * len(blobs))
    next(ends)
    with folder.writing(name, sync=False) as file:
        file.write(b"".join(map(_OFFSET.pack, ends)))
        file.writelines(blobs)
    return [bucket_hash(name, index, blob) for index, blob in enumerate(blobs)]


def bucket_hash(name: str, index: int, blob: bytes) -> int:
    """Return a hash of a run's part of one bucket, 0 if the part is empty.

    It depends on the name of the run and the bucket. The sums of the hashes written and read are equal unless a run is
    damaged or swapped with another run.
    """
    if not blob:
        return 0
    return int.from_bytes(blake3.blake3(b"%s %d " % (name.encode(), index) + blob).digest(length=_HASH_SIZE_BYTES))


def read_bucket(
    folder: ObjectFolder,
    names: Iterable[str],
    index: int,
    buckets: int,
    add_hash: Callable[[int], object] = lambda _: None,
) -> list[Row]:
    """Return the pieces of the bucket `index`, one of `buckets`, from the runs `names`, sorted by key.

    Raises ExportError and StorageError. `add_hash` is called with the hash of each run's part.
    """
    pieces: list[Row] = []
    names = list(names)
    blobs = for_each(folder, partial(_blob, folder, index=index, buckets=buckets), names)
    for name, blob in zip(names, blobs, strict=True):
        add_hash(bucket_hash(name, index, blob))
        if blob:
            try:
                pieces += msgpack.unpackb(zstd.decompress(blob), use_list=False)
            except (zstd.ZstdError, ValueError, TypeError) as error:
                raise ExportError(
                    f"{folder.file(name)} is damaged: {error}. Remove this file, then run the command again"
                ) from None
    pieces.sort(key=key_of)
    return pieces


def _blob(folder: ObjectFolder, name: str, *, index: int, buckets: int) -> bytes:
    path = folder.file(name)
    try:
        with storage_errors(path), folder.open_parts(name) as file:
            file.seek(_OFFSET.size * max(index - 1, 0))
            ends = file.read(_OFFSET.size * min(index + 1, 2))
            stop = _OFFSET.unpack(ends[-_OFFSET.size :])[0]
            start = _OFFSET.unpack(ends[: _OFFSET.size])[0] if index else _OFFSET.size * buckets
            file.seek(start)
            blob = file.read(stop - start)
    except (FileNotFoundError, struct.error) as error:
        raise ExportError(f"cannot read {path}: {error}. Remove this file, then run the command again") from None
    if len(blob) != stop - start:
        raise ExportError(f"{path} ends within bucket {index}. Remove this file, then run the command again")
    return blob


def choose_boundaries(sample: Sequence[Row], buckets: int, forced: Iterable[bytes] = ()) -> list[bytes]:
    """Return keys that split the sorted `sample` into about `buckets` ranges of equal size in bytes.

    A bucket also begins at each of the `forced` keys.
    """
    sizes = list(accumulate(len(key) + len(value) for key, value in sample))
    # An attacker can choose hashes of deletions so that the first run looks like a billionth of all pieces. Then
    # `buckets` would be huge.
    buckets = min(buckets, len(sample))
    places = {bisect_left(sizes, sizes[-1] * part // buckets) for part in range(1, buckets)}
    return sorted({sample[place][0] for place in places} | set(forced))


@dataclass
class Sorter:
    """Sorter of a derivation's pieces, with runs in the folder `scratch`, or in memory if it is None.

    `sample` returns some pieces of all ranges, to choose boundaries. Several sorters can share the work on one
    database: pass all of them the same `boundaries`, and each its own `derivation` and a `name` for its runs.
    """

    derivation: Derivation
    catalog: Catalog
    scratch: Path | None
    _: KW_ONLY
    sample: Callable[[], list[Row]] | None = None
    boundaries: Sequence[bytes] = ()
    name: str = "run"
    runs: list[str] = field(default_factory=list)

    run_size_bytes: ClassVar[int] = MAX_RUN_SIZE_BYTES
    bucket_size_bytes: ClassVar[int] = MAX_BUCKET_SIZE_BYTES

    def make_room(self, fraction: float) -> None:
        """If many pieces are in memory, write them as a run. `fraction` is the fraction of posts derived so far."""
        size_bytes = self.derivation.size_bytes
        if self.scratch is None or size_bytes < self.run_size_bytes:
            return
        pieces = self.derivation.take()
        if not self.runs and not self.boundaries and self.sample is not None:
            whole_size_bytes = size_bytes / max(fraction, 1e-9)
            self.boundaries = choose_boundaries(self.sample(), 1 + int(whole_size_bytes / self.bucket_size_bytes))
        self._write(self.scratch, pieces)

    def write_rest(self) -> None:
        """Write the pieces in memory as a run, unless `scratch` is None."""
        if self.scratch is not None:
            self._write(self.scratch, self.derivation.take())

    def buckets(self) -> Iterator[tuple[bytes, bytes, list[Row]]]:
        """Yield all rows of the pieces, as (start, stop, rows with start <= key < stop), in key order.

        Call it once, after all posts are derived.
        """
        if self.scratch is None or not self.runs:
            yield b"", AFTER_ALL, finished(self.derivation.take(), self.catalog)
            return
        self.write_rest()
        folder = folder_of(self.scratch)
        edges = [b"", *self.boundaries, AFTER_ALL]
        for index, (start, stop) in enumerate(pairwise(edges)):
            yield start, stop, finished(read_bucket(folder, self.runs, index, len(edges) - 1), self.catalog)

    def _write(self, scratch: Path, pieces: list[Row]) -> None:
        name = f"{self.name}-{len(self.runs):06d}"
        write_run(folder_of(scratch), name, into_buckets(pieces, self.boundaries))
        self.runs.append(name)


def sampled(reader: Reader, catalog: Catalog) -> list[Row]:
    """Return the sorted pieces of a few thousand posts: the first posts of each of many ranges of hashes."""
    derivation = Derivation(catalog)
    for start in range(_SAMPLED_RANGES):
        rows = reader.scan(DATA_PREFIX + b"%02x" % start, DATA_PREFIX + AFTER_HEX)
        for _, raw in islice(rows, _SAMPLED_POSTS // _SAMPLED_RANGES):
            with suppress(DecodeError):
                derivation.post(decode_post(raw, reader.dialect))
    return derivation.take()


def finished(pieces: list[Row], catalog: Catalog) -> list[Row]:
    """Return the rows of the database from the pieces of a bucket.

    If rows have the same key, which only damage can cause, the row with the greatest value is used.
    """
    rows = combine(pieces, catalog)
    keys = [key for key, _ in rows]
    return rows if all(map(lt, keys, islice(keys, 1, None))) else list(dict(sorted(rows)).items())
