"""Verification of an export: every byte against the checksums, and the content against the manifest."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import blake3

from cablestore import limits
from cablestore.errors import DecodeError, ExportError, StorageError
from cablestore.export.manifest import (
    MANIFEST,
    DamagedManifestError,
    Manifest,
    Place,
    Segment,
    in_order_of_types,
    read_arrivals,
    read_consents,
    read_manifest,
    read_posts,
    read_tombstones,
)
from cablestore.export.sort import merge, write_sorted
from cablestore.files import Location
from cablestore.index.check import ProblemReport
from cablestore.index.packing import pack
from cablestore.index.signatures import SignatureVerifier
from cablestore.index.tombstone import Tombstone
from cablestore.protocol.body import Delete
from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.protocol.post import Post, decode_post

_POST: Final = b"\x00"
"""Prefix of data from a post. It sorts before data from tombstones with the same hash."""
_STONE: Final = b"\x01"
_HASH: Final = itemgetter(slice(0, HASH_SIZE_BYTES))


@dataclass(frozen=True, slots=True)
class ExportProblem:
    """Problem of one file of an export."""

    file: str
    what: str

    def __str__(self) -> str:
        """Return the problem as one line."""
        return f"{self.file}: {self.what}"


class ExportReport(ProblemReport[ExportProblem]):
    """Counts and problems of `verify_export`."""

    def add(self, file: str, what: str) -> None:
        """Add a problem."""
        self.add_problem(ExportProblem(file, what))


def verify_export(
    folder: Location, *, signatures: bool = False, progress: Callable[[int], None] = lambda _: None
) -> ExportReport:
    """Verify the checksums of all files, the encoding and order of all posts, and the counts.

    If the export contains the post/delete of a tombstone, the post/delete must confirm the tombstone. Posts of the
    export must not have effective tombstones. With `signatures`, every signature is verified, on all cores. `progress`
    is called with the number of posts verified since the last call. Raises ExportError if the export is missing,
    unfinished or in an unknown format. A damaged manifest is a problem in the report.
    """
    report = ExportReport()
    try:
        manifest = read_manifest(folder)
    except DamagedManifestError as error:
        report.add(MANIFEST, str(error))
        return report
    with (
        tempfile.TemporaryDirectory(prefix="cablestore-verify-") as scratch,
        closing(SignatureVerifier()) as verifier,
    ):
        proofs = _Proofs(Path(scratch))
        _Verification(manifest, report, proofs, verifier if signatures else None).run(progress)
    return report


class _Groups:
    """Records grouped by the hash with which they begin. They are sorted on the disk, to limit memory."""

    def __init__(self, scratch: Path, name: str) -> None:
        self._scratch = scratch
        self._name = name
        self._records: list[bytes] = []
        self._size_bytes = 0
        self._runs: list[Path] = []

    def add(self, *fields: bytes) -> None:
        """Add a record that consists of `fields`: first a hash, then the data about it."""
        record = b"".join(fields)
        self._records.append(record)
        self._size_bytes += len(record)
        if self._size_bytes >= limits.MAX_RUN_SIZE_BYTES:
            self._spill()

    def _spill(self) -> None:
        path = self._scratch / f"{self._name}-{len(self._runs):06d}"
        write_sorted(path, self._records)
        self._runs.append(path)
        self._records, self._size_bytes = [], 0

    def __iter__(self) -> Iterator[tuple[bytes, Iterator[bytes]]]:
        """Yield each hash with an iterator over its records, in order. The records are yielded without the hash."""
        self._spill()
        for digest, group in groupby(chain.from_iterable(merge(self._runs)), key=_HASH):
            yield digest, (record[HASH_SIZE_BYTES:] for record in group)


class _Proofs:
    """Posts of an export, and the deletions that its post/deletes and tombstones claim."""

    def __init__(self, scratch: Path) -> None:
        self._deletions = _Groups(scratch, "deletions")
        self._targets = _Groups(scratch, "targets")

    def post(self, post: Post) -> None:
        """Record a post and, if it is a post/delete, the deletions that it claims."""
        self._targets.add(post.hash, _POST)
        if isinstance(post.body, Delete):
            for target in dict.fromkeys(post.body.hashes) or (b"",):
                self._deletions.add(post.hash, _POST, post.timestamp_ms.to_bytes(8, "big"), post.author, target)

    def stone(self, stone: Tombstone) -> None:
        """Record a tombstone."""
        at = stone.deleted_at_ms.to_bytes(8, "big")
        self._deletions.add(stone.deleted_by, _STONE, at, stone.author, stone.target)
        if stone.is_effective:
            self._targets.add(stone.target, _STONE)

    def not_confirmed(self) -> Iterator[bytes]:
        """Yield the targets of tombstones whose post/delete is in the export and does not confirm them."""
        for _, group in self._deletions:
            said: set[bytes] = set()
            for record in group:
                if record.startswith(_POST):
                    said.add(record[1:])
                elif said and record[1:] not in said:
                    yield record[-HASH_SIZE_BYTES:]

    def not_dead(self) -> Iterator[bytes]:
        """Yield the hash of each post in the export that a tombstone marks as deleted."""
        for digest, group in self._targets:
            if next(group) == _POST and _STONE in group:
                yield digest


@dataclass(slots=True)
class _Verification:
    """One run over all segments of an export."""

    manifest: Manifest
    report: ExportReport
    proofs: _Proofs
    verifier: SignatureVerifier | None
    last: bytes = b""
    """Position of the previous item of the same kind, or b"" before the first item."""

    def run(self, progress: Callable[[int], None]) -> None:
        """Check all files."""
        for segments, check in (
            (self.manifest.post_segments, partial(self._posts, progress=progress)),
            (self.manifest.tombstone_segments, self._tombstones),
            (self.manifest.consent_segments, self._consents),
        ):
            self.last = b""
            for segment in segments:
                self._guard(segment.file, check, segment)
        for target in self.proofs.not_confirmed():
            self.report.add("tombstones", f"the tombstone of {target.hex()} is not confirmed by its post/delete")
        for digest in self.proofs.not_dead():
            self.report.add("tombstones", f"the post {digest.hex()} is in the export, but has a tombstone")
        self._guard("arrivals.json", read_arrivals, self.manifest.source)

    def _guard(self, file: str, work: Callable[..., object], *arguments: Any) -> None:
        """Check a file. An error becomes a problem of this file."""
        try:
            work(*arguments)
        except (ExportError, StorageError) as error:
            self.report.add(file, str(error))

    def _posts(self, segment: Segment, progress: Callable[[int], None]) -> None:
        types: Counter[str] = Counter()
        places: list[bytes] = []
        hasher = blake3.blake3()
        for raws in read_posts(self.manifest.source, segment):
            hasher.update(pack(raws))
            posts = [post for post in (self._decoded(segment, raw) for raw in raws) if post is not None]
            self._check_signatures(segment, posts)
            for post in posts:
                types[post.type_name] += 1
                places[1:] = [self._check_place(segment, post.timestamp_ms.to_bytes(8, "big") + post.hash)]
                self.proofs.post(post)
            self.report.posts += len(raws)
            progress(len(raws))
        ends = (None, None) if not places else (_place(places[0]), _place(places[-1]))
        expected = (segment.posts, segment.first, segment.last)
        self._check_entry(segment, hasher.hexdigest(), (in_order_of_types(types), *ends) == expected)

    def _tombstones(self, segment: Segment) -> None:
        hasher = blake3.blake3()
        for stones in read_tombstones(self.manifest.source, segment):
            hasher.update(pack([[stone.target, stone.author, stone.encode()] for stone in stones]))
            for stone in stones:
                self._check_place(segment, stone.target + stone.author)
                self.proofs.stone(stone)
            self.report.tombstones += len(stones)
        self._check_entry(segment, hasher.hexdigest(), agrees=True)

    def _consents(self, segment: Segment) -> None:
        hasher = blake3.blake3()
        for statements in read_consents(self.manifest.source, segment):
            hasher.update(pack([[said.user, said.timestamp_ms, said.hash, said.accepts] for said in statements]))
            for said in statements:
                self._check_place(segment, said.user + said.timestamp_ms.to_bytes(8, "big") + said.hash)
        self._check_entry(segment, hasher.hexdigest(), agrees=True)

    def _decoded(self, segment: Segment, raw: bytes) -> Post | None:
        try:
            post = decode_post(raw, self.manifest.dialect)
        except DecodeError as error:
            self.report.add(segment.file, f"cannot decode a post: {error}")
            return None
        if post.is_local_only:
            self.report.add(segment.file, f"the post {post.hash.hex()} is local-only and must not be exported")
        return post

    def _check_signatures(self, segment: Segment, posts: list[Post]) -> None:
        if self.verifier is None:
            return
        signed = self.verifier.start([post.raw for post in posts])()
        for post, is_signed in zip(posts, signed, strict=True):
            if not is_signed:
                self.report.add(segment.file, f"the post {post.hash.hex()} has a bad signature")

    def _check_place(self, segment: Segment, place: bytes) -> bytes:
        if place <= self.last:
            self.report.add(segment.file, f"the item {place.hex()} is out of order")
        self.last = place
        return place

    def _check_entry(self, segment: Segment, content_blake3: str, agrees: bool) -> None:
        if content_blake3 != segment.content_blake3:
            self.report.add(segment.file, "the BLAKE3 of its content does not match the manifest")
        if not agrees:
            self.report.add(segment.file, "its counts, first or last post do not match the manifest")
        if self.manifest.source.size(segment.file) != segment.size_bytes:
            self.report.add(segment.file, "its size does not match the manifest")


def _place(place: bytes) -> Place:
    return int.from_bytes(place[:8], "big"), place[8:].hex()
