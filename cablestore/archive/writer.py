"""Writing archives to a community's folder, in order, with its signed index.

Archives in the index never change, so published pieces remain valid. An archive is added to the index after it is
synced to the disk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from cablestore.archive.folder import ArchiveFolder, end_of
from cablestore.archive.format.archive import Archive, decode_archive
from cablestore.archive.format.commitment import Commitment
from cablestore.archive.format.index import VerifiedIndex, encode_signed_index, make_index, verify_index
from cablestore.archive.format.merkle import MerkleTree
from cablestore.archive.format.period import Period
from cablestore.archive.format.profile import Entry, Profile, Record
from cablestore.protocol.crypto import Identity, post_hash
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.waku import WakuMessage
from cablestore.reprs import hex_repr

_WRITE_SIZE_BYTES: Final = 33_554_432
"""Total size of waiting archives at which they are written to the disk, followed by one write of the index."""


@dataclass(slots=True)
class CreateReport:
    """Counts of created archives and posts."""

    archives: int = 0
    posts: int = 0
    size_bytes: int = 0
    late_posts: int = 0
    """Number of `posts` that arrived after the archive of their week was created."""
    oversize: list[bytes] = field(default_factory=list)
    """Hashes of posts that are too large for any archive."""
    tombstones_left_out: list[bytes] = field(default_factory=list)
    """Hashes of deleted posts whose tombstones do not fit into the archive of their post/delete."""
    deletions_left_out: list[bytes] = field(default_factory=list)
    """Hashes of post/deletes that do not fit into the index. Their targets are from earlier weeks."""
    index_size_bytes: int = 0

    __repr__ = hex_repr


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """Settings for the archives of a store. `key` is the cabal key, or None for public archives."""

    profile: Profile
    identity: Identity
    dialect: Dialect
    key: bytes | None = field(default=None, repr=False)

    def verified(self, folder: ArchiveFolder) -> VerifiedIndex | None:
        """Verify and return the index of a folder, or None if the index is missing.

        Raises ArchiveError if the index is damaged or was created with other settings.
        """
        data = folder.index_bytes()
        if data is None:
            return None
        return verify_index(
            data,
            self.profile,
            self.identity.public_key,
            self.dialect,
            data_size_bytes=folder.data_size_bytes(),
            key=self.key,
        )


class ArchiveWriter:
    """Writer of archives into a claimed folder. `created` counts the new archives."""

    def __init__(self, folder: ArchiveFolder, plan: ArchivePlan, deletions: Iterable[bytes]) -> None:
        """Continue after the existing archives. `deletions` are the encoded post/deletes for the index."""
        self.created: Final = CreateReport()
        self._folder = folder
        self._plan = plan
        self._deletions = list(deletions)
        known = plan.verified(folder)
        self._entries: list[Entry] = list(known.index.entries) if known else []
        self._commitments: dict[str, Commitment] = dict(known.commitments) if known else {}
        self._end_bytes = end_of(known.index if known else None)
        self._by_period: defaultdict[Period, list[Entry]] = defaultdict(list)
        for entry in self._entries:
            self._by_period[entry.period].append(entry)
        self._waiting: list[Archive] = []

    def has(self, period: Period) -> bool:
        """Return True if the folder already contained archives of a week before this writer."""
        return period in self._by_period

    def missing(self, period: Period, messages: list[WakuMessage]) -> list[WakuMessage]:
        """Return the messages of a week that are not in an earlier archive, in order.

        `messages` are all messages of the week in order. The result is counted as late if the week has archives.
        """
        if not self.has(period):
            return messages
        known = self._by_period[period]
        if self._are_all(known, messages):
            return []
        archived = self._hashes(known)
        late = [message for message in messages if message.post_hash not in archived]
        self.created.late_posts += len(late)
        return late

    def add(self, archives: Sequence[Archive], oversize: Iterable[bytes] = ()) -> None:
        """Add the archives of a week. Weeks must be in order. A later call may write the archives to the disk."""
        self._waiting += archives
        self.created.oversize += oversize
        self.created.tombstones_left_out += [target for archive in archives for target in archive.left_out]
        if sum(len(archive.stored) for archive in self._waiting) >= _WRITE_SIZE_BYTES:
            self._write()

    def finish(self) -> CreateReport:
        """Write the remaining archives and new deletions to the disk. Return the counts of created archives."""
        self._write()
        return self.created

    def _are_all(self, known: list[Entry], messages: list[WakuMessage]) -> bool:
        """Return True if the archives `known`, in order, contain exactly `messages`."""
        at = 0
        for entry in known:
            commitment = self._commitments[entry.archive_id]
            tree = MerkleTree(message.post_hash for message in messages[at : at + commitment.num_posts])
            if (tree.size, tree.root()) != (commitment.num_posts, commitment.merkle_root):
                return False
            at += tree.size
        return at == len(messages)

    def _hashes(self, known: list[Entry]) -> set[bytes]:
        """Return the hashes of all posts in the archives `known`."""
        return {
            post_hash(record.payload)
            for entry in known
            for record in decode_archive(self._plan.profile, self._folder.stored(entry), entry, self._plan.key)
            if isinstance(record, Record)
        }

    def _write(self) -> None:
        if self._waiting:
            self._folder.append([archive.stored for archive in self._waiting], self._end_bytes)
        for archive in self._waiting:
            entry = archive.entry(self._plan.profile, self._end_bytes)
            self._entries.append(entry)
            self._commitments[entry.archive_id] = Commitment(
                entry.archive_id, archive.sha256, archive.num_posts, archive.merkle_root
            )
            self._end_bytes += len(archive.stored)
            self.created.archives += 1
            self.created.posts += archive.num_posts
            self.created.size_bytes += len(archive.stored)
        self._waiting = []
        if self._entries:
            self._write_index()

    def _write_index(self) -> None:
        data, self.created.deletions_left_out = encode_signed_index(
            make_index(self._plan.profile, self._entries),
            self._commitments.values(),
            self._plan.identity,
            self._plan.dialect,
            self._deletions,
            self._plan.key,
        )
        if data != self._folder.index_bytes():
            self._folder.write_index(data)
        self.created.index_size_bytes = len(data)
