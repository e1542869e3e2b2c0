"""Commands for backups: backup, restore."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from cablestore.backup import (
    BackupProblem,
    BackupReport,
    RestoreReport,
    backup,
    restore,
    restore_points,
    verify_backup,
)
from cablestore.backup.points import point_sizes
from cablestore.cli.options import common_options, on_mount, reading_options
from cablestore.cli.output import NO_PROBLEMS, Output, safe, size
from cablestore.cli.stores import on_closed_store, open_or_connect
from cablestore.cli.values import FolderValue, Moment, PathValue
from cablestore.errors import StoreLockedError
from cablestore.files import ObjectFolder
from cablestore.index.last_backup import note_backup
from cablestore.plurals import counted
from cablestore.store.key_file import load_identity
from cablestore.store.options import system_clock_ms
from cablestore.views.installed import installed_catalog

_JSON_NAMES: Final = {"sealed": "local_only", "is_full": "full", "is_signed": "signed", "is_authentic": "authentic"}


@on_mount("folder")
@click.command("backup")
@click.argument("folder", metavar="DIR", type=FolderValue())
@click.option("--with-key", is_flag=True, help="Also back up the secret key of the store, in a file with mode 0600.")
@click.option("--full", is_flag=True, help="Write every file again, even if DIR already contains it.")
@click.option(
    "--keep",
    metavar="RULE",
    help="Rule for restore points. 7d4w12m keeps the last point of each of 7 days, 4 weeks and 12 months. Later runs "
    "use the same rule [default: keep only the newest].",
)
@click.option("--list", "lists", is_flag=True, help="Only list the restore points in DIR.")
@click.option(
    "--check",
    is_flag=True,
    help="Only verify the backup in DIR: every checksum, and every post (about 20,000 per second and core).",
)
@reading_options
def backup_command(
    path: Path,
    out: Output,
    folder: ObjectFolder,
    with_key: bool,
    full: bool,
    keep: str | None,
    lists: bool,
    check: bool,
    read_only: bool,
) -> int:
    """Back up the store to a folder, incrementally.

    DIR is a path, or a URI such as s3://BUCKET/FOLDER with credentials in the environment. The backup contains posts,
    deletions, local-only posts (encrypted), causal logs and local data of this store. Only data that changed since the
    last backup is written. The last backup remains valid until the new backup is complete. With --check or --list, exit
    status 1 if problems are found.

    Example: `cablestore backup /media/disk/backup`
    """
    if check or lists:
        if with_key or full or keep is not None:
            name = "--check" if check else "--list"
            raise click.UsageError(f"{name} writes nothing and cannot be combined with --with-key, --full or --keep")
        return _check(folder, out) if check else _list(folder, out)
    with out.progress("backing up", None) as progress:
        options: dict[str, Any] = {"with_key": with_key, "full": full, "keep": keep, "progress": progress}
        try:
            report = on_closed_store(path, lambda path: backup(path, folder, read_only=read_only, **options))
            if not read_only:  # backup() of a checkpoint is recorded only in the checkpoint
                note_backup(path, system_clock_ms(), folder)
        except StoreLockedError:  # the process that has the store open also has its causal logs open
            with open_or_connect(path, read_only=read_only) as store:
                report = backup(store, folder, **options)
    _print(report, out)
    return 0


def _print(report: BackupReport, out: Output) -> None:
    what = "all posts" if report.is_full else "changes"
    out.say(
        f"backed up {counted(report.posts, 'post')} and {counted(report.sealed, 'local-only post')}, "
        f"{size(report.size_bytes)}; wrote {what}: {counted(report.written, 'file')}, "
        f"{size(report.written_size_bytes)}",
        **_fields(report),
    )
    if report.points > 1 or report.keep is not None:
        removed = f"; removed {report.removed_points:,}" if report.removed_points else ""
        out.note(f"kept {counted(report.points, 'restore point')}{removed}")
    if report.points > 1 and report.keep is None:
        out.note("the rule for restore points is lost, so all points are kept. Use --keep to set the rule again")
    if report.damaged_points:
        out.note(
            f"found {counted(report.damaged_points, 'damaged restore point')}. Run `cablestore backup --check` to list "
            "the files"
        )
    if report.mended:
        out.note(f"replaced {counted(report.mended, 'missing or damaged file')} of the last backup")
    if report.has_lost_key:
        out.note("the key file of the last backup is missing. Use --with-key to write it again")
    if not report.is_signed:
        out.note(
            "the backup is not signed, because the store's key is missing or cannot be read. A restore leaves out "
            "local rows and causal logs"
        )
    if report.sealed and not report.has_key:
        out.note("the backup does not contain the key, which local-only posts need. Keep a copy of the file identity")


def _fields(report: BackupReport | RestoreReport) -> dict[str, Any]:
    """Return the fields of a report under their JSON names."""
    return {_JSON_NAMES.get(name, name): value for name, value in asdict(report).items()}


def _list(folder: ObjectFolder, out: Output) -> int:
    points, problems = restore_points(folder)
    rows = [
        {
            "time": point.manifest.time if point.manifest.made_ms else None,
            "posts": point.manifest.items("posts"),
            "local_only": point.manifest.sealed,
            "size_bytes": size.size_bytes,
            "own_size_bytes": size.own_size_bytes,
            "newest": point.is_newest,
            "made_ms": point.manifest.made_ms,
            "signed_by": point.manifest.signed_by,
        }
        for point, size in zip(points, point_sizes(points), strict=True)
    ]
    out.table(("time", "posts", "local_only", "size_bytes", "own_size_bytes"), rows)
    _print_problems(problems, out)
    return 1 if problems else 0


def _check(folder: ObjectFolder, out: Output) -> int:
    with out.progress("reading", None) as progress:
        manifest, problems = verify_backup(folder, progress=progress)
    _print_problems(problems, out)
    verdict = counted(len(problems), "problem") if problems else NO_PROBLEMS
    out.say(
        f"{counted(manifest.items('posts'), 'post')} in {counted(len(manifest.pieces), 'file')}: {verdict}",
        posts=manifest.items("posts"),
        files=len(manifest.pieces),
        problems=len(problems),
        signed_by=manifest.signed_by,
    )
    if manifest.signed_by is None:
        out.note("the backup is not signed. A restore leaves out local rows and causal logs")
    else:
        out.note(
            f"the backup is signed by {manifest.signed_by}. Compare this with the public key that `cablestore "
            "identity` prints"
        )
    return 1 if problems else 0


def _print_problems(problems: Iterable[BackupProblem], out: Output) -> None:
    for problem in problems:
        out.say(f"✗ {safe(problem.what)}", problem=problem.what, file=problem.file)


@on_mount("path")
@click.command("restore")
@click.argument("folder", metavar="DIR", type=FolderValue())
@click.option(
    "--at",
    "at_ms",
    type=Moment(),
    metavar="TIME",
    help="Restore the last point created at or before this time: a time that `backup --list` prints, or a time such as "
    "2024-01-31 or 3d [default: the newest].",
)
@click.option(
    "--key", "key_file", type=PathValue(), metavar="FILE", help="Key file of the store, if DIR does not contain it."
)
@click.option(
    "--without-local-only", is_flag=True, help="Leave out local-only posts, for example if their key is lost."
)
@click.option(
    "--salvage", is_flag=True, help="Restore the intact files of a damaged backup, and list the damaged files."
)
@click.option(
    "--unverified",
    is_flag=True,
    help="Also restore local rows, causal logs and deletions without a signature of the store's key.",
)
@common_options
def restore_command(
    path: Path,
    out: Output,
    folder: ObjectFolder,
    at_ms: int | None,
    key_file: Path | None,
    without_local_only: bool,
    salvage: bool,
    unverified: bool,
) -> int:
    """Create a store from a backup.

    DIR is a path or a URI. --store names the new store, whose folder must not exist or must be empty. The command
    verifies every post and rebuilds every view. Exit status 1 if posts are rejected or files are damaged; other posts
    are restored.

    Example: `cablestore restore backup -s restored --key identity-copy`
    """
    with out.progress("restoring", None) as progress:
        report = restore(
            folder,
            path,
            at_ms=at_ms,
            identity=None if key_file is None else load_identity(key_file),
            without_sealed=without_local_only,
            salvage=salvage,
            unverified=unverified,
            catalog=installed_catalog(),
            progress=progress,
        )
    _print_restored(report, out)
    if report.has_key and key_file is None:
        out.note(
            f"restored with the key in the backup, {report.key}. Compare it with your public key, or restore with your "
            "own copy: --key FILE"
        )
    return 0 if report.is_complete else 1


def _print_restored(report: RestoreReport, out: Output) -> None:
    _print_problems(report.problems, out)
    for reason, count in report.rejected.items():
        out.say(f"✗ rejected posts ({reason}): {count:,}", rejected=count, reason=reason)
    out.say(
        f"restored {counted(report.posts, 'post')}, {counted(report.sealed, 'local-only post')} and "
        f"{counted(report.tombstones, 'tombstone')}",
        **(_fields(report) | {"rejected": sum(report.rejected.values()), "problems": len(report.problems)}),
    )
    if report.problems:
        out.note(
            f"lost {counted(report.lost_posts, 'post')} in damaged files. Deletions may be missing too. Run "
            "`cablestore sync` with a peer to fetch both"
        )
    if report.left_out_rows:
        out.note(
            f"left out {counted(report.left_out_rows, 'row')} of local data and causal logs: a signature of the "
            "store's key is missing or was not verified. Pass the key with --key FILE, or use --unverified if the backup "
            "is not signed and you trust its folder"
        )
    if not report.has_key:
        out.note("the new store does not contain a key. Restore its file identity, or the next use creates a new key")


COMMANDS: Final = (backup_command, restore_command)
