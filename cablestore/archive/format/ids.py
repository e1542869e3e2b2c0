"""Ids of archives: the Keccak-256 of an archive's metadata in the index, which is all that status-go hashes. Pure.

An id says where an archive lies, of which time and channels it is. It says nothing of the archive's content.
"""

from __future__ import annotations

from Crypto.Hash import keccak


def keccak256(data: bytes) -> bytes:
    """Return the 32-byte Keccak-256 of `data`. SHA3-256, which hashlib has, pads otherwise and is another function."""
    return keccak.new(digest_bits=256, data=data).digest()


def archive_id(index_metadata: bytes) -> str:
    """Return the id of the archive with these bytes of IndexMetadata: 0x and 64 hex digits (status-go)."""
    return f"0x{keccak256(index_metadata).hex()}"
