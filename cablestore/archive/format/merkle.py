"""A Merkle tree over the hashes of an archive's posts, in the archive's order (RFC 6962, 2.1). Pure.

    leaf = sha256(0x00 | post hash)     node = sha256(0x01 | left | right)     no posts = sha256("")

The root of all is in the index. With it, one post can be proved to be in an archive without the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

EMPTY_ROOT: Final = hashlib.sha256().digest()


class MerkleTree:
    """Takes hashes one after the other and holds one node for each bit of their number."""

    __slots__ = ("_peaks", "size")

    def __init__(self, hashes: Iterable[bytes] = ()) -> None:
        """Begin the tree with `hashes`, 32 bytes each."""
        self.size = 0
        """Hashes in the tree."""
        self._peaks: list[bytes] = []
        """Roots of whole subtrees, largest first: one for each 1 in the binary `size`."""
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
        """Return the 32-byte root of what is in the tree so far."""
        if not self._peaks:
            return EMPTY_ROOT
        root = self._peaks[-1]
        for peak in reversed(self._peaks[:-1]):
            root = _node(peak, root)
        return root


def proof(hashes: Sequence[bytes], index: int) -> tuple[bytes, ...]:
    """Return the nodes that lead from the hash at `index` to the root of all, lowest first (RFC 6962, 2.1.1).

    Raises IndexError for an index outside of `hashes`.
    """
    if not 0 <= index < len(hashes):
        raise IndexError(f"there is no hash {index} among {len(hashes)}")
    path: list[bytes] = []
    start, stop = 0, len(hashes)
    while stop - start > 1:
        middle = start + _left_size(stop - start)
        if index < middle:
            path.append(MerkleTree(hashes[middle:stop]).root())
            stop = middle
        else:
            path.append(MerkleTree(hashes[start:middle]).root())
            start = middle
    return tuple(reversed(path))


def verify_proof(digest: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> bool:
    """Tell whether `path` proves that the hash at `index` of `size` in the tree of this root is `digest`.

    Never raises: a path of strangers of any length gives False (RFC 9162, 2.1.3.2).
    """
    if not 0 <= index < size:
        return False
    node, last = _leaf(digest), size - 1
    for sibling in path:
        if last == 0 or len(sibling) != len(EMPTY_ROOT):
            return False
        if index & 1 or index == last:
            node = _node(sibling, node)
            while not index & 1 and index:
                index, last = index >> 1, last >> 1
        else:
            node = _node(node, sibling)
        index, last = index >> 1, last >> 1
    return last == 0 and node == root


def _left_size(size: int) -> int:
    """Return the largest power of two below `size`."""
    return 1 << (size - 1).bit_length() - 1


def _leaf(digest: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + digest).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()
