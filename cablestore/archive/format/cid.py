"""Codex content ids of blocks, of Merkle trees over the blocks of a dataset, and of manifests of datasets.

Pure. The rules follow the deployed nim-codex. It differs from its specification: in the hash of a tree node, the key
byte follows the two children. Tests check each rule against ids that deployed peers created. Two properties are
important:

* The id of a tree does not determine the dataset's size: the last block is padded with zeros, so `a` and `a` followed
  by a zero byte have the same tree. The manifest contains the size.
* Another filename, media type or manifest format changes the manifest, and therefore the id of the dataset.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from typing import Final, Self

from cablestore import limits
from cablestore.errors import ArchiveError
from cablestore.protocol.protobuf import fields, number_field, sized_field
from cablestore.protocol.varint import encode_varint

BLOCK_SIZE_BYTES: Final = 65_536
"""Size of blocks (nim-codex: DefaultBlockSize)."""
LEAF_SIZE_BYTES: Final = 32
"""Size of a SHA-256, of a block or of a node of the tree."""

CODEC_MANIFEST: Final = 0xCD01
CODEC_BLOCK: Final = 0xCD02
CODEC_TREE: Final = 0xCD03

_CODECS: Final = (CODEC_MANIFEST, CODEC_BLOCK, CODEC_TREE)
_SHA256: Final = 0x12
_CID_VERSION_ORDINAL: Final = 2  # the ordinal of CIDv1 in an enumeration of nim-libp2p; manifests contain it
_BASE58: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_TEXT_SIZE: Final = 52  # `z` and 51 digits for any digest: the bytes before the digest fix the number of digits

_NO_NODE: Final = bytes(LEAF_SIZE_BYTES)
_BOTTOM: Final = 1
_ALONE: Final = 2
_KEYS: Final = tuple(bytes((key,)) for key in range(4))

_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}")
_NOT_IN_FILENAMES: Final = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')


@dataclass(frozen=True, slots=True, order=True, repr=False)
class Cid:
    """Content id: the kind of content (`codec`, one of CODEC_*) and its SHA-256."""

    codec: int
    digest: bytes

    def __post_init__(self) -> None:
        if self.codec not in _CODECS or len(self.digest) != LEAF_SIZE_BYTES:
            raise ArchiveError(
                f"invalid content id: codec {self.codec:#x} and a digest of {len(self.digest)} bytes, expected a codec "
                "of Codex and 32 bytes"
            )

    def encode(self) -> bytes:
        """Return the 38 bytes: version 1, codec, hash function, length, digest."""
        return _before_digest(self.codec) + self.digest

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode the 38 bytes. Raises ArchiveError for other bytes, such as other hash functions and codecs."""
        for codec in _CODECS:
            head = _before_digest(codec)
            if data.startswith(head) and len(data) == len(head) + LEAF_SIZE_BYTES:
                return cls(codec, data[len(head) :])
        raise ArchiveError(
            f"invalid content id {data[:40].hex()}: expected a CIDv1 of Codex for a manifest, block or tree with "
            "SHA-256"
        )

    def __str__(self) -> str:
        number, digits = int.from_bytes(self.encode()), ""
        while number:
            number, digit = divmod(number, 58)
            digits = _BASE58[digit] + digits
        return f"z{digits}"

    def __repr__(self) -> str:
        return f"Cid.parse({str(self)!r})"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text form, `z` and base58btc. Raises ArchiveError for other text."""
        if len(text) != _TEXT_SIZE or text[0] != "z":
            raise ArchiveError(f"invalid content id {text[:60]!r}: expected {_TEXT_SIZE} characters that begin with z")
        number = 0
        for character in text[1:]:
            digit = _BASE58.find(character)
            if digit < 0:
                raise ArchiveError(f"invalid content id {text!r}: {character!r} is not a base58 digit")
            number = number * 58 + digit
        return cls.decode(number.to_bytes((number.bit_length() + 7) // 8))


def _before_digest(codec: int) -> bytes:
    return b"\x01" + encode_varint(codec) + bytes((_SHA256, LEAF_SIZE_BYTES))


# --- the tree ----------------------------------------------------------------------------------------


def block_count_of(size_bytes: int) -> int:
    """Return the number of blocks of a dataset of this size."""
    return -(-size_bytes // BLOCK_SIZE_BYTES)


def leaf_of(block: bytes) -> bytes:
    """Return the leaf of a block of 1 to 65,536 bytes: its SHA-256 after padding a short last block with zeros."""
    if not 0 < len(block) <= BLOCK_SIZE_BYTES:
        raise ArchiveError(f"invalid block size: expected 1 to {BLOCK_SIZE_BYTES} bytes, got {len(block)}")
    return sha256(block.ljust(BLOCK_SIZE_BYTES, b"\0")).digest()


def _node(left: bytes, right: bytes | None, level: int) -> bytes:
    """Return the node over two nodes on `level`, or over one node without a right neighbour."""
    key = (_BOTTOM if level == 0 else 0) + (_ALONE if right is None else 0)
    return sha256(left + (right or _NO_NODE) + _KEYS[key]).digest()


class RootHasher:
    """Incremental hasher of leaves to their root. It keeps one node for each level of the tree."""

    def __init__(self) -> None:
        self.leaf_count = 0
        self._waiting: list[bytes | None] = []  # for each level, a left node whose right node is missing

    def add(self, leaf: bytes) -> None:
        """Add the next leaf, 32 bytes."""
        node, level = leaf, 0
        while level < len(self._waiting) and (left := self._waiting[level]) is not None:
            self._waiting[level] = None
            node = _node(left, node, level)
            level += 1
        if level == len(self._waiting):
            self._waiting.append(None)
        self._waiting[level] = node
        self.leaf_count += 1

    def root(self) -> bytes:
        """Return the root over the added leaves. Raises ArchiveError without leaves, as nim-codex does."""
        if not self._waiting:
            raise ArchiveError("empty dataset: Codex requires at least one byte")
        last: bytes | None = None
        top = len(self._waiting) - 1
        for level, left in enumerate(self._waiting):
            if left is not None and last is None and level == top > 0:
                return left
            if left is not None:
                last = _node(left, last, level)
            elif last is not None:
                last = _node(last, None, level)
        assert last is not None  # noqa: S101 - the topmost level always has a node
        return last


class DatasetHasher:
    """Incremental hasher of a dataset. It computes the tree from pieces of any size.

    It keeps one block, and one node for each level of the tree.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self._rest = bytearray()
        self._roots = RootHasher()

    def update(self, data: bytes | bytearray | memoryview) -> bytes:
        """Add the next bytes. Return the concatenated leaves of the blocks that they complete."""
        view = memoryview(data)
        self.size_bytes += len(view)
        leaves = []
        if self._rest:
            taken = view[: BLOCK_SIZE_BYTES - len(self._rest)]
            self._rest += taken
            view = view[len(taken) :]
            if len(self._rest) < BLOCK_SIZE_BYTES:
                return b""
            leaves.append(sha256(self._rest).digest())
        whole = len(view) - len(view) % BLOCK_SIZE_BYTES
        leaves += [sha256(view[at : at + BLOCK_SIZE_BYTES]).digest() for at in range(0, whole, BLOCK_SIZE_BYTES)]
        self._rest = bytearray(view[whole:])
        for leaf in leaves:
            self._roots.add(leaf)
        return b"".join(leaves)

    def finish(self) -> tuple[Cid, bytes]:
        """Return the tree's id and the leaf of the short last block, or b"". Call this once, at the end.

        Raises ArchiveError if no bytes were added.
        """
        leaf = leaf_of(bytes(self._rest)) if self._rest else b""
        if leaf:
            self._roots.add(leaf)
        self._rest.clear()
        return Cid(CODEC_TREE, self._roots.root()), leaf


# --- manifests ---------------------------------------------------------------------------------------


class ManifestFormat(StrEnum):
    """Format of manifests. It changed twice without a version number in the manifest."""

    CODEX = "codex"
    """nim-codex until December 2025. Seen in ids of real nodes."""
    LOGOS1 = "logos1"
    """Logos Storage, early and middle of 2026. Seen in an id of a real node."""
    LOGOS2 = "logos2"
    """Logos Storage, later in 2026. From its source code; not yet checked against an id of a real node."""


@dataclass(frozen=True, slots=True)
class DatasetManifest:
    """Manifest of a dataset: the id of its tree, its size, and the filename and media type from the client.

    Raises ArchiveError for invalid values.
    """

    tree: Cid
    dataset_size_bytes: int
    filename: str | None = None
    mimetype: str | None = None
    manifest_format: ManifestFormat = ManifestFormat.CODEX

    def __post_init__(self) -> None:
        if self.tree.codec != CODEC_TREE:
            raise ArchiveError(f"invalid manifest: expected the id of a tree, got {self.tree}")
        if not 0 < self.dataset_size_bytes <= limits.MAX_DATASET_SIZE_BYTES:
            raise ArchiveError(
                f"invalid dataset size in the manifest: expected 1 to {limits.MAX_DATASET_SIZE_BYTES} bytes, got "
                f"{self.dataset_size_bytes}"
            )
        if self.filename is not None:
            check_filename(self.filename)
        if self.mimetype is not None:
            check_media_type(self.mimetype)

    @property
    def block_count(self) -> int:
        """Number of blocks."""
        return block_count_of(self.dataset_size_bytes)

    def encode(self) -> bytes:
        """Return the bytes whose hash is in the id: a protobuf message in field 1 of another (nim-codex coders)."""
        fields: list[int | bytes | None] = [
            self.tree.encode(),
            BLOCK_SIZE_BYTES,
            self.dataset_size_bytes,
            CODEC_BLOCK,
            _SHA256,
            _CID_VERSION_ORDINAL,
            self.filename.encode() if self.filename is not None else None,
            self.mimetype.encode() if self.mimetype is not None else None,
        ]
        if self.manifest_format is ManifestFormat.LOGOS2:
            fields.insert(0, 0)  # the manifest's version
        elif self.manifest_format is ManifestFormat.CODEX:
            fields.insert(6, None)  # erasure coding, which archives do not use
        return _field(1, b"".join(_field(number, value) for number, value in enumerate(fields, 1)))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a manifest in any format. Raises ArchiveError for bytes that `encode` does not return.

        Without filename and media type, manifests in the formats codex and logos1 have the same bytes. The result then
        has the format codex.
        """
        if len(data) > limits.MAX_MANIFEST_SIZE_BYTES:
            raise ArchiveError(
                f"manifest too large: {len(data)} bytes, the maximum is {limits.MAX_MANIFEST_SIZE_BYTES}"
            )
        fields = _read_fields(data)
        for manifest_format in ManifestFormat:
            manifest = cls._from_fields(fields, manifest_format)
            if manifest is not None and manifest.encode() == data:
                return manifest
        raise ArchiveError(
            "invalid manifest: unknown format (known: codex, logos1, logos2), or the manifest of an erasure coded "
            "dataset"
        )

    @classmethod
    def _from_fields(cls, fields: dict[int, int | bytes], manifest_format: ManifestFormat) -> Self | None:
        """Read the fields in one format. Return None if they do not match it."""
        first = 2 if manifest_format is ManifestFormat.LOGOS2 else 1
        name_at = 7 if manifest_format is ManifestFormat.LOGOS1 else 8
        tree, size_bytes = fields.get(first), fields.get(first + 2)
        name, kind = fields.get(name_at, b""), fields.get(name_at + 1, b"")
        if not (isinstance(tree, bytes) and isinstance(size_bytes, int)):
            return None
        if not (isinstance(name, bytes) and isinstance(kind, bytes)):
            return None
        bare = cls(Cid.decode(tree), size_bytes, manifest_format=manifest_format)
        try:
            return replace(bare, filename=name.decode() or None, mimetype=kind.decode() or None)
        except (ArchiveError, UnicodeDecodeError):
            return None  # the filename in one format is the media type in another


def manifest_cid(manifest: DatasetManifest) -> Cid:
    """Return the content id of the dataset with this manifest."""
    return Cid(CODEC_MANIFEST, sha256(manifest.encode()).digest())


def manifest_of(
    cid: Cid, tree: Cid, size_bytes: int, filename: str | None, mimetype: str | None
) -> DatasetManifest | None:
    """Return the manifest with these values, in the format that gives it the id `cid`, or None if no format does."""
    for manifest_format in ManifestFormat:
        manifest = DatasetManifest(tree, size_bytes, filename, mimetype, manifest_format)
        if manifest_cid(manifest) == cid:
            return manifest
    return None


def check_filename(filename: str) -> None:
    """Raise ArchiveError for a filename that Codex rejects: with folders, wildcards, quotes or control characters."""
    try:
        size_bytes = len(filename.encode())
    except UnicodeEncodeError:
        raise ArchiveError(f"the filename {filename!r} is not UTF-8") from None
    if not 0 < size_bytes <= limits.MAX_FILENAME_SIZE_BYTES:
        raise ArchiveError(f"invalid filename: expected 1 to {limits.MAX_FILENAME_SIZE_BYTES} bytes, got {size_bytes}")
    if _NOT_IN_FILENAMES.search(filename) or filename[0] == " " or filename[-1] in " .":
        raise ArchiveError(
            f'invalid filename {filename!r}: expected a name without folder, without \\ : * ? " < > | and without '
            "control characters"
        )


def check_media_type(mimetype: str) -> None:
    """Raise ArchiveError unless this is a media type by RFC 6838, such as text/plain."""
    if not _MEDIA_TYPE.fullmatch(mimetype):
        raise ArchiveError(f"invalid media type {mimetype[:80]!r}: expected a type such as text/plain")


def _field(number: int, value: int | bytes | None) -> bytes:
    if value is None:
        return b""
    return number_field(number, value) if isinstance(value, int) else sized_field(number, value)


def _read_fields(data: bytes) -> dict[int, int | bytes]:
    """Decode the message in field 1. The caller encodes it again to detect duplicate fields and other encodings."""
    match list(fields(data, "manifest")):
        case [(1, bytes(message))]:
            return dict(fields(message, "manifest"))
    raise ArchiveError("invalid manifest: expected one message in field 1")
