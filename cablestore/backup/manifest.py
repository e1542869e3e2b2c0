"""Format of a backup: the files in its folder, its manifest, and the lock of the folder.

    backup.json             the newest restore point: the list of its pieces with their hashes, and its own checksum;
                            replaced by rename at the end
    point-TIME.json         an earlier restore point, in the same form
    posts-HASH.seg          the bytes of posts, in order of their hashes
    arrivals-HASH.seg       [key, value] of rows of the arrival log
    rows-HASH.seg           [key, value] of tombstones, sealed local-only posts and local rows, in order of keys
    causal-logs-HASH.seg    [key, value] of the rows of causal logs, in order of keys
    identity                the key file of the store, mode 0600, if it was requested

A piece is a segment as in exports. HASH is the BLAKE3 of its msgpack before compression, so two files with the same
name have the same content. Files that no restore point lists are not part of the backup: an interrupted run left them,
and the next run uses or removes them (docs/reference/FORMAT.md).

Each restore point contains the hashes of all content, and is signed by the store's identity. So a reader with the key
can verify that the store wrote it. Checksums do not prove this, because anyone who can write the folder can create
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any, Final, Literal, Self

import blake3
from msgspec import Meta, Struct, to_builtins

from cablestore.documents import as_declared, read_checked, with_checksum
from cablestore.errors import BackupError, ExportError, IdentityError
from cablestore.export.segment import read_segment
from cablestore.files import LocalFolder, ObjectFolder, cache_folder, open_folder, restrict, try_lock
from cablestore.index import arrival_log
from cablestore.index.database import Row
from cablestore.index.local import PREFIX as LOCAL_PREFIX
from cablestore.index.packing import pack
from cablestore.index.reader import PRIVATE_PREFIX, TOMBSTONE_PREFIX
from cablestore.protocol.crypto import Identity, is_signed
from cablestore.protocol.dialect import DIALECTS
from cablestore.protocol.keys import SEPARATOR
from cablestore.store.key_file import load_identity

FORMAT: Final = 3
"""Version of the format of a backup: docs/reference/FORMAT.md. Formats 1 (version 0.12) and 2 lack the time. Format 1
also lacks the signature and the file sizes.
"""
MANIFEST: Final = "backup.json"
POINT_GLOB: Final = "point-*.json"
KEY_FILE: Final = "identity"

PieceKind = Literal["posts", "arrivals", "rows", "causal-logs"]
KINDS: Final[tuple[PieceKind, ...]] = ("posts", "arrivals", "rows", "causal-logs")
_PREFIXES: Final[dict[PieceKind, tuple[bytes, ...]]] = {
    "arrivals": (arrival_log.LOG_PREFIX,),
    "rows": (TOMBSTONE_PREFIX, LOCAL_PREFIX, PRIVATE_PREFIX),
    "causal-logs": (SEPARATOR,),
}
"""Allowed prefixes of the keys in a piece of rows. Rows with other keys could replace verified posts."""
_CONTEXT: Final = b"cablestore backup "
"""Prefix of the message that is signed. Posts do not begin with it."""
_TIME: Final = r"\d{4}-\d\d-\d\dT\d{6}\.\d{3}Z"
"""A time in UTC without colons, which some file systems reject."""
_OWN: Final = re.compile(
    rf"(({'|'.join(KINDS)})-[0-9a-f]{{64}}\.seg|{re.escape(MANIFEST)}|point-{_TIME}\.json|{KEY_FILE})(\.[0-9a-f]+\.tmp)?"
)
_Count = Annotated[int, Meta(ge=0)]
_Hex = Annotated[str, Meta(pattern=r"\A([0-9a-f]{2})*\Z")]
_Moment = Annotated[int, Meta(ge=0, le=253_402_300_799_999)]
"""A time up to the year 9999, in ms."""


_Rule = Annotated[str, Meta(pattern=r"\A([0-9]{1,4}[hdwmy])+\Z")]


@dataclass(frozen=True, slots=True)
class Piece:
    """File of a backup. `first` and `last` are the first and the last key in the file, in hex.

    `size_bytes` counts keys and values before packing and compression. `file_size_bytes` is the size of the file, or
    None in a backup of format 1.
    """

    kind: PieceKind
    items: _Count
    size_bytes: _Count
    first: _Hex
    last: _Hex
    blake3: _Hex
    file_size_bytes: _Count | None = None

    @property
    def file(self) -> str:
        """Name of the file in the backup's folder."""
        return f"{self.kind}-{self.blake3}.seg"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupManifest:
    """Description of a restore point: the fields of backup.json in their order."""

    format: int = FORMAT
    made_ms: _Moment = 0
    """Time of the backed-up state in ms since 1970, or 0 in formats 1 and 2."""
    keep: _Rule | None = None
    """Rule that selects the restore points to keep, or None if only the newest point is kept."""
    dialect: str
    store: str
    """Id of the store."""
    generation: str
    """Current generation of the store at the time of the backup."""
    through: _Count
    """Number of the last entry of the arrival log in the backup."""
    last_entry: _Hex
    """Last entry of a post up to `through`, in hex. The next backup uses it to check that the log is still the same."""
    since_full: _Count
    """Number of backups since the last full backup, which wrote all posts."""
    full_size_bytes: _Count
    """Size of the posts in the last full backup."""
    sealed: _Count
    """Number of local-only posts, which require the store's key."""
    key: _Hex | None
    """Public key of the key file in the backup, or None if the backup does not contain one."""
    pieces: tuple[Piece, ...]
    signed_by: _Hex | None = None
    """Public key of the store's identity in hex, or None if the backup is not signed."""
    signature: _Hex | None = None

    @property
    def time(self) -> str:
        """Time of the backed-up state in UTC, such as 2024-01-31T120000.000Z."""
        moment = datetime.fromtimestamp(self.made_ms // 1000, UTC)
        return f"{moment:%Y-%m-%dT%H%M%S}.{self.made_ms % 1000:03}Z"

    @property
    def point_file(self) -> str:
        """Name of the file in which this manifest is kept after a later backup."""
        return f"point-{self.time}.json"

    def of(self, kind: PieceKind) -> tuple[Piece, ...]:
        """Return the pieces of a kind."""
        return tuple(piece for piece in self.pieces if piece.kind == kind)

    def items(self, kind: PieceKind) -> int:
        """Return the number of items in the pieces of a kind."""
        return sum(piece.items for piece in self.of(kind))

    def size_bytes(self, kind: PieceKind) -> int:
        """Return the size of the pieces of a kind, before packing and compression."""
        return sum(piece.size_bytes for piece in self.of(kind))

    def encode(self) -> bytes:
        """Return the bytes of backup.json."""
        signature = {} if self.format == 1 else {"signature": self.signature}
        return with_checksum(self._fields() | signature)

    def signed(self, identity: Identity) -> Self:
        """Return the manifest with the signature of the store's identity."""
        named = replace(self, signed_by=identity.public_key.hex())
        return replace(named, signature=identity.sign(named.signed_message).hex())

    @property
    def is_signed(self) -> bool:
        """True if the signature matches `signed_by`. Before you trust it, compare `signed_by` with a trusted key."""
        if self.signed_by is None or self.signature is None:
            return False
        return is_signed(bytes.fromhex(self.signed_by) + bytes.fromhex(self.signature) + self.signed_message)

    @property
    def signed_message(self) -> bytes:
        """Bytes that the store's identity signs."""
        return _CONTEXT + blake3.blake3(with_checksum(self._fields())).digest()

    def _fields(self) -> dict[str, Any]:
        """Return all fields of the manifest's format, except the signature."""
        fields: dict[str, Any] = to_builtins(self)
        del fields["signature"]
        if self.format < 3:
            del fields["made_ms"], fields["keep"]
        if self.format == 1:
            del fields["signed_by"]
            for piece in fields["pieces"]:
                del piece["file_size_bytes"]
        return fields


class _Version(Struct):
    format: _Count


def read_backup(folder: ObjectFolder) -> BackupManifest:
    """Return the manifest of the newest restore point of a backup, after verifying its checksum.

    Raises BackupError if the backup is missing, unfinished, damaged or in an unknown format.
    """
    path = folder.file(MANIFEST)
    try:
        return read_manifest(folder, MANIFEST)
    except FileNotFoundError:
        raise BackupError(
            f"{folder} is not a finished backup: {MANIFEST} is missing. Run `cablestore backup` first"
        ) from None
    except ValueError as error:
        raise BackupError(
            f"{path} is damaged: {error}. Use another copy of the backup. To write it again from the store, remove "
            f"{MANIFEST} and run `cablestore backup`"
        ) from None


def read_manifest(folder: ObjectFolder, name: str) -> BackupManifest:
    """Return the manifest in the file `name`.

    Raises FileNotFoundError if it is missing, ValueError if it is damaged, and BackupError if its format is unknown.
    """
    data = folder.read(name)
    fields = read_checked(data)
    version = as_declared(fields, _Version).format
    if not 1 <= version <= FORMAT:
        raise BackupError(
            f"{folder.file(name)} has format {version}, but this version of cablestore reads 1 to {FORMAT}. Install "
            "another version"
        )
    manifest = as_declared(fields, BackupManifest)
    if manifest.dialect not in DIALECTS:
        raise ValueError(f"its dialect {manifest.dialect!r:.80} is unknown")
    if len({piece.file for piece in manifest.pieces}) != len(manifest.pieces):
        raise ValueError("it lists a piece twice")
    if manifest.encode() != data:
        raise ValueError("its fields do not match its format")
    return manifest


def read_piece(folder: ObjectFolder, piece: Piece) -> tuple[Any, ...]:
    """Return the items of a piece, posts or [key, value], after verifying its checksum.

    Raises BackupError if the file is missing or damaged, StorageError after an I/O error.
    """
    file = folder.file(piece.file)
    try:
        blocks = list(islice(read_segment(file), 2))
    except ExportError as error:
        raise BackupError(str(error).replace("Write the segment again", MEND).replace("Write it again", MEND)) from None
    items = blocks[0] if len(blocks) == 1 else ()
    if (blake3.blake3(pack(items)).hexdigest(), len(items)) != (piece.blake3, piece.items):
        raise BackupError(f"{file} is damaged: its content does not match its BLAKE3. {MEND}")
    return items


MEND: Final = (
    "Run `cablestore backup --full`, use another copy of the backup, or restore the rest with `cablestore restore "
    "--salvage`"
)


def read_rows(folder: ObjectFolder, piece: Piece) -> Iterator[list[Row]]:
    """Yield the rows of a piece in one block. Raises the same errors as `read_piece`."""
    items = read_piece(folder, piece)
    try:
        rows = [(key, value) for key, value in items]
    except (ValueError, TypeError):
        rows = []
    prefixes = _PREFIXES[piece.kind]
    if len(rows) != len(items) or not all(
        type(key) is type(value) is bytes and key.startswith(prefixes) for key, value in rows
    ):
        raise BackupError(f"{folder.file(piece.file)} contains an item that is not a row of this kind. {MEND}")
    yield rows


def read_posts(folder: ObjectFolder, piece: Piece) -> Iterator[list[bytes]]:
    """Yield the posts of a piece in one block, without verification. Raises the same errors as `read_piece`."""
    items = read_piece(folder, piece)
    if not all(type(raw) is bytes for raw in items):
        raise BackupError(f"{folder.file(piece.file)} contains an item that is not a post. {MEND}")
    yield list(items)


@dataclass(frozen=True, slots=True)
class BackupProblem:
    """Problem of a file of a backup, such as damage. `what` is the message for the user."""

    file: str
    what: str


def damaged_files(folder: ObjectFolder, manifest: BackupManifest, sizes: Mapping[str, int]) -> list[BackupProblem]:
    """Return a problem for each piece of a restore point whose file is missing or has a wrong size.

    `sizes` maps the names of the files in the folder to their sizes in bytes.
    """
    problems = []
    for piece in manifest.pieces:
        size_bytes, expected = sizes.get(piece.file), piece.file_size_bytes
        if size_bytes is None:
            problems.append(BackupProblem(piece.file, f"{folder.file(piece.file)} is missing. {MEND}"))
        elif expected is not None and size_bytes != expected:
            what = f"{folder.file(piece.file)} is damaged: it has {size_bytes:,} bytes, expected {expected:,}. {MEND}"
            problems.append(BackupProblem(piece.file, what))
    return problems


def load_key(folder: ObjectFolder) -> Identity:
    """Return the key pair in the key file of a backup. Raises IdentityError if the file is missing or invalid."""
    if not folder.is_local or not folder.exists(KEY_FILE):  # a device or pipe may never end
        raise IdentityError(f"{folder.file(KEY_FILE)} is missing or is not a file")
    return load_identity(folder.path / KEY_FILE)


# --- the folder --------------------------------------------------------------------------------


@contextmanager
def claimed(folder: ObjectFolder, *, to_write: bool = False) -> Iterator[None]:
    """Lock the folder of a backup. Several readers may lock it at once. The lock of a URI affects only this machine.

    Raises BackupError if the folder is in use, or if a folder to read is missing. With `to_write`, the folder is
    created, and BackupError is raised like in `reject_other`.
    """
    if folder.is_local and folder.path.exists() and not folder.path.is_dir():
        raise BackupError(f"{folder} is a file, but a backup is a folder. Choose a new or empty folder")
    if to_write:
        reject_other(folder)
        folder.make()
    elif folder.is_local and not folder.path.is_dir():
        raise BackupError(f"no backup found at {folder}")
    place = folder.path if folder.is_local else _lock_of(folder.uri)
    with open_folder(place) as descriptor:
        if not try_lock(descriptor, shared=not to_write):
            raise BackupError(f"the backup in {folder} is in use by another process. Wait until it ends")
        if to_write:
            reject_other(folder)
        if folder.is_local:
            restrict(place, is_own, notify=(place / MANIFEST).exists())
        yield


def reject_other(folder: ObjectFolder) -> None:
    """Raise BackupError if a folder without a manifest contains files that are not a backup's, or only a key file."""
    names = sorted({*folder.names(), *folder.folders()})
    if MANIFEST in names:
        return  # foreign files in a backup are kept
    foreign = names if names == [KEY_FILE] else [name for name in names if not _OWN.fullmatch(name)]
    if foreign:
        raise BackupError(
            f"{folder} is not a backup: it contains {', '.join(foreign[:3])}. Choose a new or empty folder"
        )


def is_own(name: str) -> bool:
    """Return True if this is the name of a file of a backup."""
    return _OWN.fullmatch(name) is not None


def own_sizes(folder: ObjectFolder) -> dict[str, int]:
    """Return the sizes in bytes of the backup's files in the folder, including files of interrupted runs."""
    return {name: size_bytes for name, size_bytes in folder.sizes().items() if is_own(name)}


def _lock_of(uri: str) -> Any:
    place = LocalFolder(cache_folder() / "backups" / blake3.blake3(uri.encode()).hexdigest()[:32])
    place.make()
    return place.path
