"""Backups: a folder that holds all of a store that follows from nothing else, and the store from that folder."""

from cablestore.backup.manifest import BackupManifest, BackupProblem, Piece, read_backup
from cablestore.backup.restore import RestoreReport, restore
from cablestore.backup.verify import verify_backup
from cablestore.backup.write import BackupReport, backup

__all__ = [
    "BackupManifest",
    "BackupProblem",
    "BackupReport",
    "Piece",
    "RestoreReport",
    "backup",
    "read_backup",
    "restore",
    "verify_backup",
]
