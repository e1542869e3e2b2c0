"""Writing a backup of one state of a store. The first run writes everything, and later runs write only changes.

Every state is a restore point. Points share pieces. backup.json describes the newest point, and replacing it completes
a run. Then points that the rule does not keep are removed, and finally pieces that no point lists. So every point is
complete even if the process is killed.

Most of the data are posts, so each run writes only new posts, into separate pieces. Pieces with removed posts are
written again without these posts. All other rows are read completely each time, and only changed pieces are written.
From time to time all posts are written again, to limit the number of pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from cablestore import limits
from cablestore.backup.causal_logs import causal_log_rows
from cablestore.backup.keep import KeepRule
from cablestore.backup.manifest import (
    KEY_FILE,
    MANIFEST,
    BackupManifest,
    Piece,
    claimed,
    damaged_files,
    load_key,
    own_sizes,
    read_backup,
    read_posts,
)
from cablestore.backup.pieces import PieceWriter, as_posts
from cablestore.backup.pruning import Points
from cablestore.errors import BackupError, IdentityError
from cablestore.files import Location, ObjectFolder, folder_of, storage_errors, sync_folder
from cablestore.index import arrival_log
from cablestore.index.arrival_log import EventKind
from cablestore.index.batches import Progress, no_progress
from cablestore.index.database import Row
from cablestore.index.folder import store_path
from cablestore.index.header import Header, peek
from cablestore.index.last_backup import note_backup
from cablestore.index.local import PREFIX as LOCAL_PREFIX
from cablestore.index.log_position import mark_at
from cablestore.index.meta import SIZES_KEY, decode_sizes
from cablestore.index.reader import DATA_PREFIX, PRIVATE_PREFIX, TOMBSTONE_PREFIX, Reader, data_key
from cablestore.protocol.crypto import Identity, post_hash
from cablestore.protocol.keys import after_prefix
from cablestore.remote.store import run
from cablestore.store.closed import locked_folder, open_reader
from cablestore.store.key_file import StoreIdentity, draft_identity
from cablestore.store.options import system_clock_ms
from cablestore.store.store import CableStore
from cablestore.views.data import VIEW as DATA

_GONE: Final = frozenset({EventKind.DELETED, EventKind.DISCARDED})
"""Events after which a post is not in the next backup."""
_POSTS_PER_REPORT: Final = 1_000
"""Number of posts between two calls of `progress`."""


@dataclass(frozen=True, slots=True)
class BackupReport:
    """Content of a backup, and the files written for it."""

    posts: int
    """Posts that are not local-only."""
    sealed: int
    """Local-only posts."""
    is_full: bool
    """True if all posts were written, False if only posts since the last backup were written."""
    has_key: bool
    """True if the backup contains the store's key."""
    written: int
    """Files written, besides the manifest."""
    written_size_bytes: int
    size_bytes: int
    """Size of all files."""
    keep: str | None
    """Rule that selects the restore points to keep."""
    points: int
    """Number of restore points, including the new one."""
    removed_points: int
    """Restore points removed by this run."""
    damaged_points: int
    """Earlier restore points that are unreadable or lack files. While a point is unreadable, no files are removed."""
    made_ms: int
    """Time of the backed-up state in ms since 1970."""
    mended: int
    """Files of the last backup that were missing or damaged, according to their sizes, and were replaced."""
    has_lost_key: bool
    """True if the key file of the last backup is missing, so the new backup lacks it. `with_key` writes it again."""
    is_signed: bool
    """True if the store's identity signed the backup, False if the identity is missing or unreadable."""


@dataclass(frozen=True, slots=True)
class _Source:
    """State of a store to back up."""

    path: Path
    header: Header
    reader: Reader
    identity: StoreIdentity
    is_read_only: bool
    """True if the store's folder must not be written to."""
    now_ms: int
    """Time of the state."""


def backup(
    store: CableStore | Path | str,
    out: Location,
    *,
    with_key: bool = False,
    full: bool = False,
    keep: str | None = None,
    identity: Identity | None = None,
    read_only: bool = False,
    clock: Callable[[], int] = system_clock_ms,
    progress: Progress = no_progress,
) -> BackupReport:
    """Back up an open store, or the store in a folder, into a folder or to a URI.

    A second backup into the same folder writes only the changes. When this returns, the folder contains only this state
    of the store, without deleted posts, and the restore points that `keep` selects. "7d4w12m" keeps the last point of
    each of 7 days, 4 weeks and 12 months (`cablestore.backup.keep`). By default, later runs use the same rule. Until
    this returns, the last backup remains intact. After an interruption, the next call resumes the backup. Files that are
    missing, too short or too long are written again.

    `with_key` adds the store's key file, and later runs keep it. `full` writes every file again. For a closed store,
    `identity` signs the backup if the store has no key file, and `clock` returns the time in ms. With `read_only`, the
    folder of the store is not written to, as in `CableStore.open`. `progress` counts the posts read.

    Raises BackupError for a folder that is in use or contains other files, StoreLockedError if another process has the
    store or its causal logs open. Raises StorageError if reading or writing fails, IdentityError if the key is missing.
    """
    if not isinstance(store, Path | str):
        return run(store, backup_open, out, with_key=with_key, full=full, keep=keep, progress=progress)
    path = store_path(store)
    with (
        locked_folder(path, read_only=read_only) as folder,
        open_reader(folder, folder.header.generation) as (_, reader),
    ):
        known = StoreIdentity(identity, path, read_only=read_only)
        source = _Source(folder.path, folder.header, reader, known, read_only, clock())
        return _write(source, out, with_key=with_key, full=full, keep=keep, progress=progress)


def backup_open(
    store: CableStore,
    out: Location,
    *,
    with_key: bool = False,
    full: bool = False,
    keep: str | None = None,
    progress: Progress = no_progress,
) -> BackupReport:
    """Back up a store that is open in this process: see `backup`."""
    header = None if store.path is None else peek(store.path)
    if store.path is None or header is None:
        raise BackupError("cannot back up a store in memory. Export the store instead")
    with store.snapshot() as state:
        known = StoreIdentity(None if store.public_key is None else store.identity, None)
        source = _Source(store.path, header, state.reader, known, store.is_read_only, store.parts.intake.clock())
        return _write(source, out, with_key=with_key, full=full, keep=keep, progress=progress)


def _write(
    source: _Source, out: Location, *, with_key: bool, full: bool, keep: str | None, progress: Progress
) -> BackupReport:
    place = folder_of(out)
    if keep is not None:
        KeepRule.parse(keep)
    if with_key and not place.is_local:
        raise BackupError(
            f"cannot write the key to a URI: {place}. Back up without the key, and keep a copy of the key elsewhere"
        )
    with claimed(place, to_write=True):
        report = _write_claimed(source, place, with_key=with_key, full=full, keep=keep, progress=progress)
    if not source.is_read_only:
        note_backup(source.path, system_clock_ms(), place)
    return report


def _write_claimed(
    source: _Source, place: ObjectFolder, *, with_key: bool, full: bool, keep: str | None, progress: Progress
) -> BackupReport:
    present = own_sizes(place)
    last = read_backup(place) if MANIFEST in present else None
    if last is not None and last.store != source.header.store_id:
        raise BackupError(f"{place} is the backup of another store. Choose a new or empty folder")
    reader, writer = source.reader, PieceWriter(place, present, again=full)
    identity = _signer(source)
    damaged = [] if last is None else [problem.file for problem in damaged_files(place, last, present)]
    is_complete = last is not None and not any(piece.file in damaged for piece in last.of("posts"))
    rows = writer.add("rows", _other_rows(reader), limits.BACKUP_ROWS_SIZE_BYTES)
    # The last backup if the new backup extends it, or None if all posts are written.
    base = last if last is not None and is_complete and not full and _is_own(identity, last) else None
    posts = None if base is None else _posts_since(reader, base, place, writer, progress)
    if posts is None:
        base, posts = None, _all_posts(reader, writer, progress)
    arrivals = _log_pieces(reader, () if base is None else base.of("arrivals"), writer)
    with causal_log_rows(source.path, read_only=source.is_read_only) as log_rows:
        logs = writer.add("causal-logs", log_rows, limits.BACKUP_ROWS_SIZE_BYTES)
    through = arrival_log.next_sequence(reader) - 1
    known = last.key if last is not None and KEY_FILE in present else None
    key, is_key_mended = _put_key(source, place, known, wanted=with_key, again=full)
    points = Points.read(place, last, source.now_ms, keep, partial(_is_own, identity))
    manifest = BackupManifest(
        made_ms=points.made_ms,
        keep=points.keep,
        dialect=reader.dialect.name,
        store=source.header.store_id,
        generation=source.header.generation,
        through=through,
        last_entry=mark_at(reader, through).hex(),
        since_full=0 if base is None else base.since_full + 1,
        full_size_bytes=sum(p.size_bytes for p in posts) if base is None else base.full_size_bytes,
        sealed=sum(1 for _ in reader.prefix(PRIVATE_PREFIX)),
        key=key,
        pieces=(*posts, *arrivals, *rows, *logs),
    )
    if identity is not None:
        manifest = manifest.signed(identity)
    if last is not None and points.keeps(last):
        place.write(last.point_file, last.encode())
    place.write(MANIFEST, manifest.encode())
    removed = points.remove_others(place, manifest)
    present = own_sizes(place)
    return BackupReport(
        posts=manifest.items("posts"),
        sealed=manifest.sealed,
        is_full=base is None,
        has_key=manifest.key is not None,
        written=writer.written,
        written_size_bytes=writer.written_size_bytes,
        size_bytes=sum(present.values()),
        keep=points.keep,
        points=len(points.kept) + 1 + points.others - removed,
        removed_points=removed,
        damaged_points=points.damaged(place, present),
        made_ms=manifest.made_ms,
        mended=len(damaged) + is_key_mended,
        has_lost_key=last is not None and last.key is not None and key is None,
        is_signed=manifest.signature is not None,
    )


def _is_own(identity: Identity | None, point: BackupManifest) -> bool:
    """Return True if the store wrote a restore point, so that a backup may include its files and sign them."""
    if identity is None:
        return point.format > 1 and point.signature is None
    return point.signed_by == identity.public_key.hex() and point.is_signed


def _signer(source: _Source) -> Identity | None:
    with suppress(IdentityError):  # a store with a damaged key file can be backed up too
        return source.identity.load()
    return None


# --- posts -------------------------------------------------------------------------------------


def _all_posts(reader: Reader, writer: PieceWriter, progress: Progress) -> list[Piece]:
    rows = _counted(reader.prefix(DATA_PREFIX), progress)
    return writer.add("posts", rows, limits.BACKUP_POSTS_SIZE_BYTES, as_posts)


def _counted(rows: Iterable[Row], progress: Progress) -> Iterator[Row]:
    done = 0
    for row in rows:
        yield row
        done += 1
        if done == _POSTS_PER_REPORT:
            progress(done)
            done = 0
    progress(done)


def _posts_since(
    reader: Reader, last: BackupManifest, place: ObjectFolder, writer: PieceWriter, progress: Progress
) -> list[Piece] | None:
    """Write the posts that changed since `last`. Return all pieces of posts: unchanged, changed and new.

    Return None if all posts must be written: if a backup cannot extend `last`, or if the pieces do not contain all
    posts of the store.
    """
    if not _continues(reader, last):
        return None
    touched: set[bytes] = set()
    gone: set[bytes] = set()
    for entry in arrival_log.post_entries(reader, last.through):
        touched.add(entry.hash)
        if entry.kind in _GONE:
            gone.add(entry.hash)
    pieces = list(chain.from_iterable(_without(gone, piece, place, writer) for piece in last.of("posts")))
    keys = (data_key(digest.hex().encode()) for digest in sorted(touched))
    found = ((key, raw) for key in keys if (raw := reader.get(key)) is not None)
    pieces += writer.add("posts", _counted(found, progress), limits.BACKUP_POSTS_SIZE_BYTES, as_posts)
    return pieces if _agrees(reader, pieces) else None


def _continues(reader: Reader, last: BackupManifest) -> bool:
    """Return True if a backup can extend `last`: the log still contains `last.last_entry`, and no limit is exceeded."""
    new = arrival_log.next_sequence(reader) - 1 - last.through
    return (
        0 <= new <= limits.MAX_BACKUP_ARRIVALS
        and last.since_full < limits.MAX_BACKUPS_SINCE_FULL
        and last.size_bytes("posts") <= 2 * last.full_size_bytes + limits.BACKUP_POSTS_SIZE_BYTES
        and last.last_entry == mark_at(reader, last.through).hex()
    )


def _without(gone: set[bytes], piece: Piece, place: ObjectFolder, writer: PieceWriter) -> list[Piece]:
    """Return `piece` if it contains no post in `gone`. Otherwise write its other posts and return the new pieces."""
    start, stop = bytes.fromhex(piece.first), bytes.fromhex(piece.last)
    if not any(start <= data_key(digest.hex().encode()) <= stop for digest in gone):
        return [piece]
    raws = chain.from_iterable(read_posts(place, piece))
    found = [(digest, raw) for digest, raw in ((post_hash(raw), raw) for raw in raws) if digest not in gone]
    if len(found) == piece.items:
        return [piece]
    rows = ((data_key(digest.hex().encode()), raw) for digest, raw in found)
    return writer.add("posts", rows, limits.BACKUP_POSTS_SIZE_BYTES, as_posts)


def _agrees(reader: Reader, posts: list[Piece]) -> bool:
    """Return True if the number and size of posts in pieces and of local-only posts match the store's counts."""
    sealed = list(map(_size_of, reader.prefix(PRIVATE_PREFIX)))
    found = sum(p.items for p in posts) + len(sealed), sum(p.size_bytes for p in posts) + sum(sealed)
    return tuple(decode_sizes(reader.get(SIZES_KEY)).get(DATA.name, (0, 0))) == found


def _size_of(row: Row) -> int:
    return len(row[0]) + len(row[1])


# --- all else ----------------------------------------------------------------------------------


def _other_rows(reader: Reader) -> Iterator[Row]:
    """Yield tombstones, local rows and local-only posts, in order of keys."""
    for prefix in sorted((TOMBSTONE_PREFIX, LOCAL_PREFIX, PRIVATE_PREFIX)):
        yield from reader.prefix(prefix)


def _log_pieces(reader: Reader, last: Sequence[Piece], writer: PieceWriter) -> list[Piece]:
    """Write the arrival log and return its pieces.

    A piece ends wherever a piece in `last` ended, so that unchanged pieces are not written again.
    """
    pieces = list[Piece]()
    start = arrival_log.LOG_PREFIX
    for end in sorted(bytes.fromhex(piece.last) + b"\0" for piece in last):
        pieces += writer.add("arrivals", reader.scan(start, end), limits.BACKUP_POSTS_SIZE_BYTES)
        start = end
    rest = reader.scan(start, after_prefix(arrival_log.LOG_PREFIX))
    return pieces + writer.add("arrivals", rest, limits.BACKUP_POSTS_SIZE_BYTES)


def _put_key(
    source: _Source, place: ObjectFolder, known: str | None, *, wanted: bool, again: bool
) -> tuple[str | None, bool]:
    """Write the key file if it is `wanted`, or if the key file in the backup is damaged.

    `known` is the public key of the key file in the backup, or None without a key file. A `wanted` key file that
    exists, intact and with the store's key, is written only with `again`. Return the public key that is then in the
    backup, or None without a key file, and True if a damaged file was replaced.
    """
    is_damaged = known is not None and not _holds(place, known)
    if not wanted and not is_damaged:
        return known, False
    identity = source.identity.load() if wanted else _signer(source)
    if identity is None and not wanted:
        return known, False  # the damaged key file remains, and `verify_backup` reports it
    if identity is None:
        raise IdentityError(f"cannot read the key of the store at {source.path}. Back up without the key")
    public_key = identity.public_key.hex()
    file = place.path / KEY_FILE
    if again or known != public_key or is_damaged:
        draft = draft_identity(identity, file)
        with storage_errors(file):
            draft.replace(file)
            sync_folder(place.path)
    return public_key, is_damaged


def _holds(place: ObjectFolder, public_key: str) -> bool:
    try:
        return load_key(place).public_key.hex() == public_key
    except IdentityError:
        return False
