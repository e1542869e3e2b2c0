"""Publishing a community's archives by content id, in a local content store or on a node with Codex' REST API.

A dataset is an archive without the zeros that follow it in a torrent. Filenames and media type are fixed, so that equal
archives get equal ids. The index by content id is signed separately, and has a content id too. Therefore control nodes
with equal stores and the same key publish the same link. Datasets that the node already has are not sent again. The
publisher requests a check of each listed dataset, because the node's files may be damaged.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, Self

from cablestore.archive.content.client import ContentClient
from cablestore.archive.folder import ArchiveFolder
from cablestore.archive.format.cid import Cid, DatasetHasher, DatasetManifest, manifest_cid
from cablestore.archive.format.commitment import Commitment
from cablestore.archive.format.index import VerifiedIndex, encode_signed_index, make_index
from cablestore.archive.format.profile import Entry, with_id
from cablestore.archive.member import verified_by_any_profile
from cablestore.errors import ArchiveError
from cablestore.protocol.crypto import Identity
from cablestore.protocol.dialect import Dialect
from cablestore.reprs import hex_repr

ARCHIVE_FILENAME: Final = "archive-data.bin"
"""Filename that status-go uses (archive_manager_logos_storage.go)."""
INDEX_FILENAME: Final = "archive-index.bin"
MEDIA_TYPE: Final = "application/octet-stream"


class PublishReport(NamedTuple):
    """Result of publishing: the content id of the index, and the amount of sent data."""

    index_cid: Cid
    archives: int
    sent: int
    """Number of `archives` that the target lacked, or had only in part."""
    sent_bytes: int
    """Sent bytes, including the index."""
    deletions_left_out: tuple[bytes, ...] = ()
    """Hashes of post/deletes of the torrent's index that do not fit into this index."""

    def __repr__(self) -> str:
        return hex_repr(self)


class Target(Protocol):
    """Target of published datasets: an open `ContentStore`, or a `NodeTarget`."""

    def datasets(self) -> list[tuple[Cid, DatasetManifest]]:
        """Return the id and manifest of each listed dataset. Raises ArchiveError if a node's list cannot be read."""

    def is_intact(self, cid: Cid) -> bool:
        """Return True if the target can serve a listed dataset. Raises ArchiveError if a node does not answer."""

    def put(self, chunks: Iterable[bytes], *, filename: str, mimetype: str) -> DatasetManifest:
        """Store a dataset on the target.

        Returns its manifest, verified against these bytes. Raises ArchiveError if the target rejects the dataset, and
        StorageError if writing fails.
        """


class NodeTarget:
    """Node with the REST API, used as a context manager. Calls block, and must come from one thread at a time."""

    def __init__(self, url: str) -> None:
        self._client = ContentClient(url)
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self._runner.run(self._client.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.__aexit__())
        self._runner.close()

    def datasets(self) -> list[tuple[Cid, DatasetManifest]]:
        """Return the datasets that the node lists, except datasets whose manifests do not match their ids."""
        return self._runner.run(self._client.datasets())[0]

    def is_intact(self, cid: Cid) -> bool:
        """Return True if the node claims to have a dataset. A node with cablestore reads the whole dataset first."""
        return self._runner.run(self._client.exists(cid, verify=True))

    def put(self, chunks: Iterable[bytes], *, filename: str, mimetype: str) -> DatasetManifest:
        """Store a dataset on the node. Raises ArchiveError if members could not verify the returned id."""
        work = self._client.upload_bytes(b"".join(chunks), filename=filename, mimetype=mimetype)
        uploaded = self._runner.run(work)
        if uploaded.manifest is None:
            raise ArchiveError(
                f"unknown manifest format: the node stored {filename} as {uploaded.cid}, which members cannot verify. "
                "Publish on another node"
            )
        return uploaded.manifest


@dataclass(frozen=True, slots=True)
class Publisher:
    """Publisher of a control node's archives. `key` is the cabal key, or None for public archives."""

    identity: Identity
    dialect: Dialect
    key: bytes | None = field(default=None, repr=False)

    def publish(
        self, folder: ArchiveFolder, target: Target, progress: Callable[[int], Any] = lambda _: None
    ) -> PublishReport:
        """Publish all archives of a folder and their index. `progress` is called after each archive.

        Raises ArchiveError if the folder does not contain archives of this control node, or if an archive does not
        match its index entry. Raises the errors of the target. After an error, the next call does not send stored
        datasets again.
        """
        verified = self._verified(folder)
        sender = _Sender(target)
        entries, commitments = [], []
        for entry in verified.index.entries:
            stored = folder.stored(entry)
            commitment = verified.commitments[entry.archive_id]
            commitment.check_stored(stored)
            content = stored[: len(stored) - entry.padding_bytes]
            cid = str(sender.send(content, ARCHIVE_FILENAME))
            by_cid = with_id(verified.index.profile, Entry("", entry.period, entry.topics, cid=cid))
            entries.append(by_cid)
            digest = hashlib.sha256(content).digest()
            commitments.append(Commitment(by_cid.archive_id, digest, commitment.num_posts, commitment.merkle_root, cid))
            progress(1)
        sent = sender.sent
        data, left_out = self._index(verified, entries, commitments)
        index = sender.send(data, INDEX_FILENAME)
        return PublishReport(index, len(entries), sent, sender.sent_bytes, tuple(left_out))

    def _verified(self, folder: ArchiveFolder) -> VerifiedIndex:
        data = folder.index_bytes()
        if data is None:
            raise ArchiveError(
                f"no archives found in {folder.path}. Create the archives first with `cablestore archive create`"
            )
        return verified_by_any_profile(
            data, self.identity.public_key, self.dialect, data_size_bytes=folder.data_size_bytes(), key=self.key
        )

    def _index(
        self, verified: VerifiedIndex, entries: list[Entry], commitments: list[Commitment]
    ) -> tuple[bytes, list[bytes]]:
        """Return the index by content id, verified as by a member, and the hashes of post/deletes that do not fit."""
        index = make_index(verified.index.profile, entries)
        data, left_out = encode_signed_index(
            index, commitments, self.identity, self.dialect, verified.deletions, self.key
        )
        verified_by_any_profile(data, self.identity.public_key, self.dialect, data_size_bytes=None, key=self.key)
        return data, left_out


class _Sender:
    """Sender of the datasets that a target lacks."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[tuple[Cid, int, str | None], Cid] = {}
        for cid, manifest in sorted(target.datasets(), reverse=True):
            if manifest.mimetype == MEDIA_TYPE:
                self._known[manifest.tree, manifest.dataset_size_bytes, manifest.filename] = cid
        self.sent = 0
        self.sent_bytes = 0

    def send(self, content: bytes, filename: str) -> Cid:
        hasher = DatasetHasher()
        hasher.update(content)
        tree, _ = hasher.finish()
        known = self._known.get((tree, len(content), filename))
        if known is not None and self._target.is_intact(known):
            return known
        manifest = self._target.put([content], filename=filename, mimetype=MEDIA_TYPE)
        self.sent += 1
        self.sent_bytes += len(content)
        return manifest_cid(manifest)
