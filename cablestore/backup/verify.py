"""Verification of a backup: every file is read and compared with its checksum, and every signature is verified."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from cablestore.backup.manifest import (
    KEY_FILE,
    BackupManifest,
    BackupProblem,
    Piece,
    claimed,
    load_key,
)
from cablestore.backup.points import RestorePoint, restore_points
from cablestore.backup.reading import BackupReading
from cablestore.errors import IdentityError
from cablestore.files import Location, ObjectFolder, folder_of
from cablestore.index.batches import Progress, no_progress
from cablestore.index.signatures import SignatureVerifier
from cablestore.index.verdict import Outcome
from cablestore.plurals import counted
from cablestore.protocol.dialect import dialect_named
from cablestore.store.intake import Intake
from cablestore.store.options import system_clock_ms


def verify_backup(
    folder: Location, *, clock: Callable[[], int] = system_clock_ms, progress: Progress = no_progress
) -> tuple[BackupManifest, list[BackupProblem]]:
    """Read every file of a backup, and verify every post as in a restore. `progress` counts items.

    Return the manifest of its newest restore point, and the problems of all points. Only `restore` can check that the
    store's key signed the backup, because it knows the key. Here, the signature is verified with the public key in the
    manifest.

    Raises BackupError if the folder is not a backup or its manifest is damaged.
    """
    place = folder_of(folder)
    with claimed(place), closing(SignatureVerifier()) as verifier:
        points, damaged = restore_points(place)
        problems = {problem.file: problem for problem in damaged}
        newest = points[-1].manifest
        intake = Intake(dialect_named(newest.dialect), verifier, clock)
        verified: set[str] = set()
        for point in reversed(points):
            problems |= _problems_of(place, point, verified, intake, progress)
            verified.update(piece.file for piece in point.manifest.pieces)
        if newest.key is not None and (problem := _problem_of_key(place, newest.key)) is not None:
            problems[KEY_FILE] = problem
    return newest, list(problems.values())


def _problems_of(
    place: ObjectFolder, point: RestorePoint, verified: set[str], intake: Intake, progress: Progress
) -> dict[str, BackupProblem]:
    """Return the problems of a restore point by file. Pieces in `verified` are not read again."""
    whole = BackupReading(place, point.manifest, salvage=True, file=point.file)
    whole.is_authentic(None)
    new = replace(point.manifest, pieces=tuple(p for p in point.manifest.pieces if p.file not in verified))
    reading = BackupReading(place, new, salvage=True, problems=whole.problems)
    for piece, posts, rejected in reading.posts(intake):
        if rejected:
            reading.problems[piece.file] = _rejected_in(place, piece, rejected)
        progress(len(posts) + len(rejected))
    for kind in ("arrivals", "rows", "causal-logs"):
        for rows in reading.rows(kind):
            progress(len(rows))
    return reading.problems


def _rejected_in(place: ObjectFolder, piece: Piece, rejected: list[Outcome]) -> BackupProblem:
    first = rejected[0]
    return BackupProblem(
        piece.file,
        f"{place.file(piece.file)} contains {counted(len(rejected), 'post')} that a restore rejects, such as "
        f"{first.hash.hex()} ({first.verdict.value}). Someone changed the backup. Run `cablestore backup --full`",
    )


def _problem_of_key(place: ObjectFolder, public_key: str) -> BackupProblem | None:
    try:
        if load_key(place).public_key.hex() == public_key:
            return None
    except IdentityError as error:
        return BackupProblem(KEY_FILE, str(error))
    return BackupProblem(KEY_FILE, f"{KEY_FILE} is not the key {public_key} of this backup")
