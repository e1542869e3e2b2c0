"""Reads an archive and believes nothing of it but what the control node signed. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from cablestore.archive.format.archive import decode_archive, verified_post
from cablestore.archive.format.index import VerifiedIndex
from cablestore.archive.format.merkle import MerkleTree
from cablestore.archive.format.profile import Entry
from cablestore.errors import ArchiveError
from cablestore.index.tombstone import Tombstone
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.post import Post


def verified_content(
    verified: VerifiedIndex, entry: Entry, stored: bytes, dialect: Dialect, key: bytes | None = None
) -> tuple[list[Post], list[Tombstone]]:
    """Return posts and tombstones of an archive. All but the posts' own signatures is checked. Raises ArchiveError."""
    stones: list[Tombstone] = []
    return list(verified_posts(verified, entry, stored, dialect, key, stones)), stones


def verified_posts(
    verified: VerifiedIndex,
    entry: Entry,
    stored: bytes,
    dialect: Dialect,
    key: bytes | None,
    stones: list[Tombstone],
) -> Iterator[Post]:
    """Yield the posts of an archive and put its tombstones into `stones`. All but the posts' own signatures is checked.

    Raises ArchiveError, possibly after posts were given: store none before the end.
    """
    profile = verified.index.profile
    commitment = verified.commitments[entry.archive_id]
    commitment.check_stored(stored)
    tree = MerkleTree()
    for record in decode_archive(profile, stored, entry, key):
        if isinstance(record, Tombstone):
            stones.append(record)
            continue
        if tree.size == commitment.num_posts:
            raise ArchiveError(
                f"archive {entry.archive_id} holds more than {commitment.num_posts} posts, as was signed"
            )
        post = verified_post(profile, record, dialect)
        tree.add(post.hash)
        yield post
    commitment.check_posts(tree)
