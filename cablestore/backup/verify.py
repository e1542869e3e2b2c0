"""Verification of a backup: every file is read and compared with its checksum."""

from __future__ import annotations

from dataclasses import dataclass

from cablestore.backup.manifest import KEY_FILE, BackupManifest, claimed, read_backup, read_posts, read_rows
from cablestore.errors import CorruptBackupError, IdentityError, StorageError
from cablestore.files import Location, folder_of
from cablestore.index.batches import Progress, no_progress
from cablestore.store.key_file import load_identity


@dataclass(frozen=True, slots=True)
class BackupProblem:
    """Part of a backup that is not as it was written."""

    file: str
    what: str


def verify_backup(folder: Location, *, progress: Progress = no_progress) -> tuple[BackupManifest, list[BackupProblem]]:
    """Read every file of a backup. Returns its manifest and what is wrong. `progress` counts items.

    Raises BackupError if the folder is not a backup, CorruptBackupError if its manifest is damaged.
    """
    place = folder_of(folder)
    problems: list[BackupProblem] = []
    with claimed(place):
        manifest = read_backup(place)
        for piece in manifest.pieces:
            try:
                for block in read_posts(place, piece) if piece.kind == "posts" else read_rows(place, piece):
                    progress(len(block))
            except (CorruptBackupError, StorageError) as error:
                problems.append(BackupProblem(piece.file, str(error)))
        if manifest.key is not None:
            try:
                if load_identity(place.path / KEY_FILE).public_key.hex() != manifest.key:
                    problems.append(BackupProblem(KEY_FILE, f"{KEY_FILE} is another key than {manifest.key}"))
            except (IdentityError, StorageError) as error:
                problems.append(BackupProblem(KEY_FILE, str(error)))
    return manifest, problems
