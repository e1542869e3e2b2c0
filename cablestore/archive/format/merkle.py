"""Merkle tree over the hashes of an archive's posts, in the archive's order (RFC 6962, 2.1). Pure.

    leaf = sha256(0x00 | post hash)     node = sha256(0x01 | left | right)     no posts = sha256("")

The root over all posts is in the index.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

EMPTY_ROOT: Final = hashlib.sha256().digest()


class MerkleTree:
    """Merkle tree to which hashes are appended. It keeps at most one node for each bit of `size`."""

    __slots__ = ("_peaks", "size")

    def __init__(self, hashes: Iterable[bytes] = ()) -> None:
        """Create the tree of `hashes`, 32 bytes each."""
        self.size = 0
        """Number of hashes in the tree."""
        self._peaks: list[bytes] = []
        """Roots of complete subtrees, largest first: one for each 1 in the binary `size`."""
        for digest in hashes:
            self.add(digest)

    def add(self, digest: bytes) -> None:
        """Append the 32-byte hash of one post."""
        node = _leaf(digest)
        size = self.size
        while size & 1:
            node = _node(self._peaks.pop(), node)
            size >>= 1
        self._peaks.append(node)
        self.size += 1

    def root(self) -> bytes:
        """Return the 32-byte root over all added hashes."""
        if not self._peaks:
            return EMPTY_ROOT
        root = self._peaks[-1]
        for peak in reversed(self._peaks[:-1]):
            root = _node(peak, root)
        return root


def _leaf(digest: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + digest).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()
