"""Restore points of a backup: states of a store at different times. They share files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from cablestore.backup.manifest import (
    MANIFEST,
    POINT_GLOB,
    BackupManifest,
    BackupProblem,
    is_own,
    read_backup,
    read_manifest,
)
from cablestore.errors import BackupError
from cablestore.files import Location, ObjectFolder, folder_of


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """State of a store in a backup."""

    file: str
    """Name of the file with the manifest."""
    manifest: BackupManifest

    @property
    def is_newest(self) -> bool:
        """True if the last run of `backup` created this point."""
        return self.file == MANIFEST


@dataclass(frozen=True, slots=True)
class EarlierPoints:
    """Restore points of a backup except the newest, earliest first, and the problems of unreadable points."""

    points: tuple[RestorePoint, ...]
    problems: tuple[BackupProblem, ...] = ()

    @classmethod
    def read(cls, folder: ObjectFolder, newest: BackupManifest | None) -> Self:
        """Read the points in a folder. A copy of `newest`, which an interrupted run may have left, is left out."""
        points, problems = list[RestorePoint](), list[BackupProblem]()
        for name in filter(is_own, folder.names(POINT_GLOB)):
            try:
                manifest = read_manifest(folder, name)
            except FileNotFoundError:
                continue  # a run of `backup` removed it meanwhile
            except BackupError as error:  # another version wrote it
                problems.append(BackupProblem(name, str(error)))
            except ValueError as error:
                problems.append(_damaged(folder, name, str(error)))
            else:
                if manifest.point_file != name:
                    problems.append(_damaged(folder, name, f"its time is {manifest.time}"))
                elif manifest != newest:
                    points.append(RestorePoint(name, manifest))
        return cls(tuple(sorted(points, key=lambda point: point.manifest.made_ms)), tuple(problems))


def _damaged(folder: ObjectFolder, name: str, reason: str) -> BackupProblem:
    what = f"{folder.file(name)} is damaged: {reason}. Use another copy of this restore point, or remove it"
    return BackupProblem(name, what)


@dataclass(frozen=True, slots=True)
class PointSize:
    """Size of a restore point in bytes. `own_size_bytes` counts only files that no other point needs."""

    size_bytes: int
    own_size_bytes: int


def restore_points(folder: Location) -> tuple[list[RestorePoint], list[BackupProblem]]:
    """Return the restore points of a backup, the newest last, and the problems of unreadable points.

    Raises BackupError if the folder is not a backup.
    """
    place = folder_of(folder)
    newest = read_backup(place)
    earlier = EarlierPoints.read(place, newest)
    return [*earlier.points, RestorePoint(MANIFEST, newest)], list(earlier.problems)


def point_sizes(points: Sequence[RestorePoint]) -> list[PointSize]:
    """Return the size of each restore point, in the same order. `points` are all restore points of a backup."""
    uses = Counter(piece.file for point in points for piece in point.manifest.pieces)
    return [
        PointSize(
            sum(piece.file_size_bytes or 0 for piece in point.manifest.pieces),
            sum(piece.file_size_bytes or 0 for piece in point.manifest.pieces if uses[piece.file] == 1),
        )
        for point in points
    ]


def point_at(folder: ObjectFolder, at_ms: int | None) -> RestorePoint:
    """Return the last restore point at or before a time, by default the newest point.

    Raises BackupError if the point is not found.
    """
    if at_ms is None:
        return RestorePoint(MANIFEST, read_backup(folder))
    # Other points can be restored even if the newest point is damaged.
    try:
        newest = [RestorePoint(MANIFEST, read_backup(folder))]
    except BackupError:
        newest = []
    earlier = EarlierPoints.read(folder, newest[0].manifest if newest else None)
    points = sorted((*earlier.points, *newest), key=lambda point: point.manifest.made_ms)
    found = [point for point in points if point.manifest.made_ms <= at_ms]
    if found:
        return found[-1]
    if not points:
        raise BackupError(f"{folder} is not a finished backup: restore point not found. Run `cablestore backup` first")
    raise BackupError(
        f"restore point not found: the earliest in {folder} is {points[0].manifest.time}. `cablestore backup --list` "
        "prints all restore points"
    )
