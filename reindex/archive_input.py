"""Archives as inputs of a job. Unlike exports they may be untrusted, so everything in them is verified.

The driver verifies the index: the control node's signature, and the statements about each archive. The task that reads
an archive verifies all of it: SHA-256, Merkle root, every message, and the signature of every post. A tombstone counts
if the same archive contains its post/delete, as when archives are imported.

Under RFC 61, an archive is canonical for its week and channels. Therefore `cablestore archive import` removes stored
posts that the archive lacks. A job does not remove them: it computes the union of all its inputs.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import ClassVar, Final

from cablestore.archive.content.community import CidReader
from cablestore.archive.folder import ArchiveReader
from cablestore.archive.format.archive import verified_content
from cablestore.archive.format.cid import Cid
from cablestore.archive.format.commitment import Commitment, open_statement
from cablestore.archive.format.index import Index, VerifiedIndex, decode_index, verify_index
from cablestore.archive.format.profile import PROFILES, Entry, Topic
from cablestore.archive.format.seal import is_sealed
from cablestore.archive.names import DATA, INDEX
from cablestore.errors import ArchiveError, CableStoreError, StorageError
from cablestore.files import ObjectFolder
from cablestore.index.tombstone import Tombstone, tombstones
from cablestore.index.verdict import too_far_ahead
from cablestore.limits import MAX_FUTURE_MS, MAX_TORRENT_SIZE_BYTES
from cablestore.protocol.crypto import are_signed
from cablestore.protocol.dialect import DIALECTS, LEGACY, Dialect
from cablestore.protocol.post import Post
from cablestore.reindex.inputs import ArchiveSource, Block, Input, fault_of
from cablestore.reindex.job import shared

_MS_PER_S: Final = 1000


def read_archives(source: ArchiveSource) -> tuple[Dialect, list[Input]]:
    """Verify a community's index. Return its dialect and its archives as inputs.

    If archives exist both from a torrent and by content id, read the archives of the newer index. Raises ArchiveError
    if none exist, or if an index is damaged, signed by another node, or encrypted and the key is missing.
    """
    folder = shared(source.folder)
    community = folder.child(source.control_key.hex())
    torrent, by_cid = ArchiveReader(community), CidReader(community)
    found = []
    if (data := torrent.index_bytes()) is not None:
        # The largest size, because a member's `data` may lack archives that the index lists.
        found.append(_read(str(community.file(INDEX)), data, MAX_TORRENT_SIZE_BYTES, source))
    if (cid := by_cid.index_cid()) is not None and (data := by_cid.content(cid)) is not None:
        found.append(_read(str(by_cid.folder.file(str(cid))), data, None, source))
    if not found:
        raise ArchiveError(f"no archives of {source.control_key.hex()} found below {folder}. Fetch the archives first")
    newest = max(found, key=_age)
    inputs: list[Input] = [
        ArchiveInput(community, newest.dialect, _alone(newest.verified, entry), newest.key)
        for entry in _with_shared_topics(newest.verified.index.entries)
    ]
    if newest.verified.deletions:
        inputs.append(DeletionsInput(newest.name, newest.verified.deletions))
    return newest.dialect, inputs


@dataclass(frozen=True, slots=True)
class _FoundIndex:
    """A verified index, and the key that decrypted it, if any."""

    name: str
    dialect: Dialect
    verified: VerifiedIndex
    key: bytes | None = field(repr=False)


def _age(found: _FoundIndex) -> tuple[int, int]:
    """Return a sort key that is greater for a newer index, like `LocalArchives.newest`."""
    entries = found.verified.index.entries
    return max((entry.period.to_ms for entry in entries), default=0), len(entries)


def _read(name: str, data: bytes, data_size_bytes: int | None, source: ArchiveSource) -> _FoundIndex:
    """Verify the index in `data`. Raises an ArchiveError that begins with `name` if it is invalid.

    Its profile is the first that can decode it. Its dialect is part of the signed statement.
    """
    key = source.cabal_key if is_sealed(data) else None
    control_key = source.control_key
    try:
        index = _decoded(data, data_size_bytes, key)
        dialect = _dialect_of(index, control_key)
        verified = verify_index(data, index.profile, control_key, dialect, data_size_bytes=data_size_bytes, key=key)
    except ArchiveError as error:
        raise ArchiveError(f"{name}: {error}") from None
    return _FoundIndex(name, dialect, verified, key)


def _decoded(data: bytes, data_size_bytes: int | None, key: bytes | None) -> Index:
    """Decode an index with the first profile that can decode it. Raises the error of the first profile if all fail."""
    reasons = []
    for profile in PROFILES.values():
        try:
            return decode_index(data, profile, data_size_bytes=data_size_bytes, key=key)
        except ArchiveError as error:
            reasons.append(error)
    raise reasons[0]


def _dialect_of(index: Index, control_key: bytes) -> Dialect:
    """Return the dialect that an index is signed for.

    An unsigned index is rejected later, so its dialect does not matter.
    """
    name = open_statement(index.signed, control_key).dialect if index.signed else LEGACY.name
    if name not in DIALECTS:
        raise ArchiveError(f"unknown dialect {name!r}, expected one of {', '.join(DIALECTS)}")
    return DIALECTS[name]


def _with_shared_topics(entries: Iterable[Entry]) -> list[Entry]:
    """Use one object for equal topics, because each entry repeats the topics of earlier weeks."""
    known: dict[Topic, Topic] = {}
    return [entry._replace(topics=tuple(known.setdefault(topic, topic) for topic in entry.topics)) for entry in entries]


def _alone(verified: VerifiedIndex, entry: Entry) -> VerifiedIndex:
    """Return the part of `verified` about the archive of `entry`."""
    commitment = verified.commitments[entry.archive_id]
    return VerifiedIndex(Index(verified.index.profile, (entry,)), {entry.archive_id: commitment}, ())


@dataclass(frozen=True, slots=True)
class ArchiveInput:
    """Archive in a folder of a community. `verified` is only the part of the index about this archive."""

    community: ObjectFolder
    dialect: Dialect
    verified: VerifiedIndex
    key: bytes | None = field(default=None, repr=False)
    error: ClassVar[type[CableStoreError]] = ArchiveError

    @property
    def entry(self) -> Entry:
        """Entry of the archive in the index."""
        return self.verified.index.entries[0]

    @property
    def commitment(self) -> Commitment:
        """Commitment of the control node to the content of the archive."""
        return self.verified.commitments[self.entry.archive_id]

    @property
    def name(self) -> str:
        """Path or URI of the file of the archive, its id and its week."""
        files = self._files
        path = files.folder.file(DATA if self.entry.cid is None else str(Cid.parse(self.entry.cid)))
        week = datetime.fromtimestamp(self.entry.period.from_ms / _MS_PER_S, UTC).date()
        return f"{path}, archive {self.entry.archive_id} of the week of {week}"

    @property
    def digest(self) -> str:
        """Hash of the signed commitment to the archive."""
        signed = (self.dialect.name, self.verified.index.profile.name, self.commitment)
        return hashlib.blake2b(repr(signed).encode(), digest_size=32).hexdigest()

    @property
    def posts(self) -> int:
        """Number of posts according to the commitment."""
        return self.commitment.num_posts

    def quick_check(self, work: ObjectFolder) -> str | None:
        """Return the result of `problem`: signatures must be verified now, because `blocks` does not verify them."""
        return self.problem(work)

    @property
    def _files(self) -> ArchiveReader | CidReader:
        return ArchiveReader(self.community) if self.entry.cid is None else CidReader(self.community)

    def problem(self, work: ObjectFolder) -> str | None:
        """Verify everything, and return the problem of the archive, or None.

        If the archive is valid, record this in `work`. A later run of the job then does not verify signatures again.
        """
        note = f"{self.digest}.verified"
        try:
            if work.exists(note):
                self._stored()
                return None
            posts, _ = self._content()
        except (ArchiveError, StorageError) as error:
            return f"{self.name}: {fault_of(error, self.community)}"
        problem = _problem_of(posts)
        if problem is not None:
            return f"{self.name}: {problem}"
        with suppress(StorageError):  # the driver reports a folder that is not shared
            work.write(note, b"")
        return None

    def blocks(self) -> Iterator[Block]:
        """Yield the archive's posts, and the tombstones that its post/deletes confirm.

        Raises ArchiveError if the archive is damaged, StorageError if reading fails.
        """
        try:
            posts, stones = self._content()
        except ArchiveError as error:
            raise ArchiveError(f"{self.name}: {error}") from None
        claims = {claim for post in posts for claim in tombstones(post)}
        yield [post.raw for post in posts], [stone for stone in stones if replace(stone, skeleton=None) in claims]

    def _stored(self) -> bytes:
        stored = self._files.stored(self.entry)
        self.commitment.check_stored(stored)
        return stored

    def _content(self) -> tuple[list[Post], list[Tombstone]]:
        return verified_content(self.verified, self.entry, self._stored(), self.dialect, self.key)


def _problem_of(posts: Sequence[Post]) -> str | None:
    """Return why a store would reject one of these posts, or None if it would accept all."""
    for post, is_right in zip(posts, are_signed([post.raw for post in posts]), strict=True):
        if not is_right:
            return f"{post!r} is not signed by its author"
    newest_ms = int(time.time() * _MS_PER_S) + MAX_FUTURE_MS
    for post in posts:
        if post.timestamp_ms >= newest_ms:
            return f"{post!r} would be rejected: {too_far_ahead(post.timestamp_ms, newest_ms)}"
    return None


@dataclass(frozen=True, slots=True)
class DeletionsInput:
    """Post/deletes in an index, which the driver verified with the index. `name` is the index's path or URI."""

    name: str
    deletions: tuple[bytes, ...]
    error: ClassVar[type[CableStoreError]] = ArchiveError

    @property
    def digest(self) -> str:
        """Hash of the deletions, which are in order of their hashes."""
        return hashlib.blake2b(repr(self.deletions).encode(), digest_size=32).hexdigest()

    @property
    def posts(self) -> int:
        """Number of deletions."""
        return len(self.deletions)

    def quick_check(self, work: ObjectFolder) -> str | None:
        """Return None, because the driver verified the deletions."""
        return self.problem(work)

    def problem(self, work: ObjectFolder) -> str | None:  # noqa: ARG002 - a parameter of `Input`
        """Return None, because the driver verified the deletions."""
        return None

    def blocks(self) -> Iterator[Block]:
        """Yield the deletions."""
        yield list(self.deletions), []
