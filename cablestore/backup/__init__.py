"""Backups: writing all data of a store that cannot be derived to a folder, and restoring the store from it."""

from cablestore.backup.manifest import BackupManifest, BackupProblem, Piece, read_backup
from cablestore.backup.points import RestorePoint, restore_points
from cablestore.backup.restore import RestoreReport, restore
from cablestore.backup.verify import verify_backup
from cablestore.backup.write import BackupReport, backup

__all__ = [
    "BackupManifest",
    "BackupProblem",
    "BackupReport",
    "Piece",
    "RestorePoint",
    "RestoreReport",
    "backup",
    "read_backup",
    "restore",
    "restore_points",
    "verify_backup",
]
