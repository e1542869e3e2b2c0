"""Backups that are forged without the key of the store: checksums are valid."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path

from cablestore import Identity
from cablestore.backup import read_backup
from cablestore.backup.manifest import BackupManifest, PieceKind, read_posts, read_rows
from cablestore.backup.pieces import PieceWriter, as_posts, as_rows
from cablestore.files import folder_of
from cablestore.index.database import Row
from cablestore.index.reader import data_key
from cablestore.protocol.crypto import post_hash

_USUAL_SIZE_BYTES = 1_000_000


def add_posts(out: Path, *raws: bytes) -> None:
    """Add posts to a backup."""
    place = folder_of(out)
    held = chain.from_iterable(block for piece in read_backup(place).of("posts") for block in read_posts(place, piece))
    rows = sorted((data_key(post_hash(raw).hex().encode()), raw) for raw in (*held, *raws))
    _write(out, "posts", rows)


def add_rows(out: Path, kind: PieceKind, *more: Row) -> None:
    """Add rows to a backup."""
    place = folder_of(out)
    held = chain.from_iterable(block for piece in read_backup(place).of(kind) for block in read_rows(place, piece))
    _write(out, kind, sorted((*held, *more)))


def _write(out: Path, kind: PieceKind, rows: Iterable[Row]) -> None:
    manifest = read_backup(folder_of(out))
    writer = PieceWriter(folder_of(out), {}, again=True)
    pieces = writer.add(kind, rows, _USUAL_SIZE_BYTES, as_posts if kind == "posts" else as_rows)
    for piece in manifest.of(kind):
        (out / piece.file).unlink(missing_ok=piece in pieces)
    put(out, replace(manifest, pieces=(*(piece for piece in manifest.pieces if piece.kind != kind), *pieces)))


def put(out: Path, manifest: BackupManifest) -> None:
    """Write a manifest with its checksum."""
    (out / "backup.json").write_bytes(manifest.encode())


def sign(out: Path, identity: Identity) -> None:
    """Sign a backup with any key."""
    put(out, read_backup(folder_of(out)).signed(identity))


def strip_signature(out: Path) -> None:
    """Remove the signature of a backup."""
    put(out, replace(read_backup(folder_of(out)), signed_by=None, signature=None))
