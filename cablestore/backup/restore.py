"""Restoring a store from a backup: all views are rebuilt from the trusted rows of the backup.

The store is created in the folder RESTORING of the target and moved out of it, its header last. A folder with RESTORING
and without a header cannot be opened. The next restore into it starts again.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cablestore.backup.causal_logs import make_causal_logs
from cablestore.backup.manifest import KEY_FILE, BackupProblem, claimed, load_key
from cablestore.backup.points import point_at
from cablestore.backup.reading import BackupReading
from cablestore.backup.trusted import TrustedRows
from cablestore.errors import BackupError, IdentityError, StoreLockedError
from cablestore.files import (
    Location,
    folder_of,
    is_foreign,
    lock,
    make_folder,
    sign_lock,
    storage_errors,
    sync_folder,
    unlock,
)
from cablestore.index import meta
from cablestore.index.batches import Progress, batches, no_progress
from cablestore.index.databases import build_generation
from cablestore.index.folder import CAUSAL_LOGS, IDENTITY_FILE, LOCK_FILE, Folder, store_path
from cablestore.index.header import FORMAT, HEADER_FILE, RESTORING
from cablestore.index.leveldb import LevelDB
from cablestore.index.local import DECIDED, local_key
from cablestore.index.local import PREFIX as LOCAL_PREFIX
from cablestore.index.parallel import Origin, rebuild_database
from cablestore.index.rebuild import RebuildReport
from cablestore.index.signatures import SignatureVerifier
from cablestore.index.view import Catalog
from cablestore.protocol.crypto import Identity
from cablestore.protocol.dialect import dialect_named
from cablestore.protocol.keys import after_prefix
from cablestore.store.intake import Intake
from cablestore.store.key_file import save_identity, unseal_of
from cablestore.store.options import system_clock_ms
from cablestore.views import CATALOG

_MADE: Final = re.compile(rf"generation-[0-9]{{12}}|{RESTORING}|{LOCK_FILE}|{IDENTITY_FILE}|{CAUSAL_LOGS}")
"""Names that an interrupted restore leaves in its target."""
_FIRST_GENERATION: Final = 10**11
"""Smallest number of the first generation of a restored store. The number is random and has twelve digits. So the
generation's name differs from the names in other stores, and from earlier names in this store.
"""


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """Report of a restore."""

    made_ms: int
    """Time of the restored state in ms since 1970, or 0 if the backup does not contain the time."""
    posts: int
    """Posts that are not local-only."""
    sealed: int
    """Local-only posts."""
    tombstones: int
    causal_log_rows: int
    has_key: bool
    """True if the restored store contains its key file."""
    key: str | None
    """Public key of the restored store in hex, or None without a key file."""
    is_authentic: bool
    """True if the store's key signed the backup."""
    left_out_rows: int
    """Local rows and rows of causal logs that are not restored, because the store's key did not sign them."""
    rejected: dict[str, int]
    """Posts and tombstones that are not restored, by reason."""
    lost_posts: int
    """Posts in damaged files."""
    problems: tuple[BackupProblem, ...]
    """Files of the backup that are damaged or were modified."""

    @property
    def is_complete(self) -> bool:
        """True if no posts or tombstones were rejected, and no files of the backup are damaged."""
        return not self.rejected and not self.problems


def restore(
    folder: Location,
    path: Path | str,
    *,
    at_ms: int | None = None,
    identity: Identity | None = None,
    without_sealed: bool = False,
    salvage: bool = False,
    unverified: bool = False,
    catalog: Catalog = CATALOG,
    processes: int | None = None,
    clock: Callable[[], int] = system_clock_ms,
    progress: Progress = no_progress,
) -> RestoreReport:
    """Create a store at `path`, which must be missing or empty, from a backup.

    Every post is verified as in an import: posts with a bad signature, or dated a week or more ahead, are rejected and
    counted. If the store's key signed the backup, the new store has the same dump and local rows as the original store.
    Otherwise local rows, causal logs and tombstones without a post/delete are omitted, unless `unverified` is set.

    `at_ms` selects the last restore point at or before this time, by default the newest point.
    `identity` is the store's key if the backup does not contain it. Local-only posts cannot be restored without the
    key: `without_sealed` omits them. `salvage` restores the intact part of a damaged backup. After an interruption,
    call this again. The incomplete store cannot be opened.

    Raises BackupError if the folder is not a backup, one of its files is damaged or the target is not empty. Raises
    IdentityError if the key is missing or wrong, StorageError if reading or writing fails.
    """
    source, target = folder_of(folder), store_path(path).absolute()
    _reject_full(target)
    with claimed(source):
        point = point_at(source, at_ms)
        reading = BackupReading(source, point.manifest, salvage, point.file)
        known = _key_of(reading, identity, without_sealed=without_sealed)
        is_authentic = reading.is_authentic(known)
        if not salvage:
            reading.require_complete()
        trusted = TrustedRows(reading, is_authentic or unverified, without_sealed)
        with _target(target) as work:
            if known is not None:
                save_identity(known, work / IDENTITY_FILE)
            report = _build(trusted, work, catalog, processes, clock, progress)
            make_causal_logs(work, trusted.causal_logs())
            _move_out(work, target)
    return RestoreReport(
        made_ms=point.manifest.made_ms,
        posts=trusted.posts,
        sealed=trusted.sealed,
        tombstones=report.tombstones,
        causal_log_rows=trusted.causal_log_rows,
        has_key=known is not None,
        key=None if known is None else known.public_key.hex(),
        is_authentic=is_authentic,
        left_out_rows=trusted.left_out_rows,
        rejected=dict(trusted.rejected),
        lost_posts=reading.lost_items("posts"),
        problems=tuple(reading.problems.values()),
    )


def _key_of(reading: BackupReading, given: Identity | None, *, without_sealed: bool) -> Identity | None:
    source, manifest = reading.folder, reading.manifest
    if manifest.key is None:
        if given is None and manifest.sealed and not without_sealed:
            raise IdentityError(
                f"{source} contains {manifest.sealed:,} local-only posts, but not the key that decrypts them. Pass the "
                "key file with --key. If it is lost, omit these posts with --without-local-only"
            )
        return given
    if given is not None:
        reading.require_key(manifest.key, given, "has")
        return given
    try:
        found = load_key(source)
    except IdentityError as error:
        if without_sealed:
            return None
        raise IdentityError(
            f"{error}. Or pass a copy of the key with --key. If it is lost, restore the rest with --without-local-only"
        ) from None
    if found.public_key.hex() != manifest.key:
        raise BackupError(
            f"{source.file(KEY_FILE)} is not the key {manifest.key} of this backup. Pass a copy of that key with --key"
        )
    return found


# --- building ----------------------------------------------------------------------------------


def _build(
    trusted: TrustedRows,
    work: Path,
    catalog: Catalog,
    processes: int | None,
    clock: Callable[[], int],
    progress: Progress,
) -> RebuildReport:
    """Create a store from the `trusted` rows in the folder `work`, without causal logs."""
    dialect = dialect_named(trusted.reading.manifest.dialect)
    row = meta.meta_row(catalog, dialect, FORMAT)
    with (
        closing(Folder.open(work, create=True, dialect=dialect)) as folder,
        folder.scratch() as scratch,
        closing(SignatureVerifier()) as verifier,
    ):
        origin = Origin(scratch / "rows", dialect, unseal_of(None, work))
        # Local-only posts are sealed in a backup. An unsealed local-only post would not have an owner in the new store.
        trusted.copy(origin.path, Intake(dialect, verifier, clock), origin.unseal)

        def build(path: Path, scratch: Path) -> RebuildReport:
            report = rebuild_database(origin, catalog, row, progress, processes, path, scratch)
            trusted.reject(report.damaged)
            if trusted.is_exact:
                _copy_local(origin.path, path, judged=not trusted.without_sealed)
            return report

        return build_generation(folder, build, _random_name())


def _random_name() -> str:
    return f"generation-{_FIRST_GENERATION + secrets.randbelow(9 * _FIRST_GENERATION)}"


def _copy_local(rows: Path, target: Path, *, judged: bool) -> None:
    """Copy all local rows from the database `rows` to the rebuilt database `target`.

    The rebuild omitted some of them, because a rebuild may lose posts. Unless `judged`, the row DECIDED is not copied,
    so that the drops are derived again when the store is opened.
    """
    leave_out = None if judged else local_key(DECIDED)
    with closing(LevelDB(rows)) as database, database.snapshot() as state, closing(LevelDB(target)) as new:
        found = (row for row in state.scan(LOCAL_PREFIX, after_prefix(LOCAL_PREFIX)) if row[0] != leave_out)
        for batch in batches(found, lambda row: len(row[1])):
            new.write(dict(batch), sync=False)


# --- the target --------------------------------------------------------------------------------


@contextmanager
def _target(path: Path) -> Iterator[Path]:
    """Lock the target folder `path` and yield its new folder RESTORING, which is removed afterwards.

    Raises BackupError if the target contains more than the remains of an interrupted restore, and StoreLockedError if
    the target is in use.
    """
    _reject_full(path)
    with storage_errors(f"cannot restore to {path}"):
        make_folder(path)
        descriptor = lock(
            path / LOCK_FILE,
            lambda owner: StoreLockedError(
                f"process {owner} restores to {path} or has a store open there. Wait until it ends"
            ),
        )
        work = path / RESTORING
        try:
            sign_lock(descriptor)
            _reject_full(path)
            _clear(path)
            make_folder(work)
            try:
                yield work
            finally:
                shutil.rmtree(work, ignore_errors=True)
        finally:
            unlock(descriptor)


def _clear(path: Path) -> None:
    """Remove the remains of an interrupted restore, RESTORING last. Other new files are kept."""
    for entry in sorted(path.iterdir(), key=lambda entry: entry.name == RESTORING):
        if _MADE.fullmatch(entry.name) and entry.name != LOCK_FILE:
            _remove(entry)


def _remove(entry: Path) -> None:
    if entry.is_dir():
        shutil.rmtree(entry)
    else:
        entry.unlink(missing_ok=True)


def _reject_full(path: Path) -> None:
    with storage_errors(f"cannot restore to {path}"):
        if path.exists() and not path.is_dir():
            raise BackupError(f"{path} is a file. Choose a new or empty folder to restore to")
        entries = path.iterdir() if path.exists() else ()
        names = {entry.name for entry in entries if not is_foreign(entry.name)}
    is_half = RESTORING in names and all(map(_MADE.fullmatch, names))
    if not is_half and names - {LOCK_FILE}:
        what = "is already a store" if HEADER_FILE in names else f"contains {', '.join(sorted(names)[:3])}"
        raise BackupError(f"{path} {what}. A restore does not overwrite files. Choose a new or empty folder")


def _move_out(work: Path, target: Path) -> None:
    """Move a store out of RESTORING, its header last. After an error, the moved files are removed."""
    names = {entry.name for entry in work.iterdir() if not is_foreign(entry.name)} - {LOCK_FILE}
    taken = sorted(name for name in names if os.path.lexists(target / name))
    if taken:
        raise BackupError(
            f"new files appeared in {target} during the restore: {', '.join(taken[:3])}. A restore does not overwrite "
            "files. Choose a new or empty folder"
        )
    moved: list[Path] = []
    try:
        with storage_errors(f"cannot move the restored store to {target}"):
            for name in sorted(names - {HEADER_FILE}):
                moved.append(target / name)
                (work / name).replace(target / name)
            sync_folder(target)
            (work / HEADER_FILE).replace(target / HEADER_FILE)
            sync_folder(target)
    except BaseException:
        if not (target / HEADER_FILE).exists():
            for entry in moved:
                _remove(entry)
        raise
