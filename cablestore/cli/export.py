"""Commands for exports: export, import, verify-export."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import click

from cablestore.cli.options import common_options, json_option, on_mount, reading_options, stored_channels
from cablestore.cli.output import Output, no_problems, safe
from cablestore.cli.service import ending_on_sigterm
from cablestore.cli.stores import on_closed_store, open_or_connect, open_store, or_connect
from cablestore.cli.values import FolderValue, Moment, public_key
from cablestore.export.importer import ImportSummary, manifests_of
from cablestore.export.manifest import Filters
from cablestore.export.verify import verify_export
from cablestore.files import ObjectFolder
from cablestore.plurals import counted
from cablestore.store.closed import ClosedStore
from cablestore.views.installed import installed_catalog


@on_mount("folder")
@click.command()
@click.argument("folder", metavar="OUT", type=FolderValue())
@click.option(
    "--channel",
    "channels",
    multiple=True,
    help="Export only posts of this channel, names of its users, and moderation of the whole cabal; repeatable.",
)
@click.option(
    "--author", "authors", multiple=True, type=public_key, help="Export only posts of this public key; repeatable."
)
@click.option(
    "--after",
    "after_ms",
    type=Moment(),
    help="Export only posts dated at or after this time, such as 2024-01-31 or 180d.",
)
@click.option("--before", "before_ms", type=Moment(), help="Export only posts dated before this time.")
@click.option("--leave-out-hidden", is_flag=True, help="Leave out messages that you or your moderators hid publicly.")
@reading_options
def export(
    path: Path,
    out: Output,
    read_only: bool,
    folder: ObjectFolder,
    channels: tuple[str, ...],
    authors: tuple[bytes, ...],
    after_ms: int | None,
    before_ms: int | None,
    leave_out_hidden: bool,
) -> None:
    """Export the posts to a new folder, for other stores.

    OUT is a path, or a URI such as s3://BUCKET/FOLDER with credentials in the environment. The export
    contains deletions, but not local-only posts. Views may be outdated, unless an option selects posts. To resume after
    an interruption, run the same command again. With a duration such as 90d, the export starts from the beginning.

    Example: `cablestore export garden-export --channel garden`
    """
    if channels:
        with open_or_connect(path, read_only=read_only) as store:
            channels = stored_channels(store, channels)
    chosen = Filters(frozenset(channels), frozenset(authors), after_ms, before_ms, leave_out_hidden)
    filters = None if chosen == Filters() else chosen
    with out.progress("exporting (counts each post twice: read and written)", None) as progress:
        catalog = installed_catalog()
        manifest = on_closed_store(
            path,
            lambda path: ClosedStore(path, catalog=catalog, read_only=read_only).export(
                folder, filters=filters, progress=progress
            ),
        )
    posts, size_bytes = sum(manifest.posts.values()), sum(segment.size_bytes for segment in manifest.segments)
    out.say(
        f"exported {counted(posts, 'post')} and {counted(manifest.tombstones, 'tombstone')}, {size_bytes:,} bytes",
        posts=manifest.posts,
        tombstones=manifest.tombstones,
        size_bytes=size_bytes,
        content_blake3=manifest.content_blake3,
    )


@click.command("import")
@click.argument("exports", metavar="EXPORT...", nargs=-1, required=True, type=FolderValue())
@common_options
def import_(path: Path, out: Output, exports: tuple[ObjectFolder, ...]) -> None:
    """Import exports into the store. Every post is verified.

    An EXPORT is a path or a URI. The store is created if it does not exist. The order of exports does not matter.
    Stored posts are skipped.

    Example: `cablestore import garden-export -s new-store`
    """
    manifests = manifests_of(exports, None)
    total = sum(sum(manifest.posts.values()) for manifest in manifests)
    with (
        or_connect(partial(open_store, path, dialect=manifests[0].dialect), path) as store,
        out.progress("importing", total) as progress,
    ):
        summary = store.import_exports(exports, progress=progress)
    _print_import(summary, out)


def _print_import(summary: ImportSummary, out: Output) -> None:
    if out.as_json:
        out.say(
            "",
            posts=summary.posts,
            verdicts=dict(summary.verdicts),
            skeletons=summary.skeletons,
            rejected_skeletons=summary.rejected_skeletons,
            consents=summary.consents,
        )
        return
    rows = [{"item": "posts read", "count": summary.posts}]
    rows += [{"item": f"posts {verdict}", "count": number} for verdict, number in summary.verdicts.most_common()]
    rows += [{"item": "deleted posts recorded", "count": summary.skeletons}]
    if summary.consents:
        rows += [{"item": "statements about roles", "count": summary.consents}]
    if summary.rejected_skeletons:
        rows += [{"item": "deleted posts left out (deletion not proven)", "count": summary.rejected_skeletons}]
    out.table(("item", "count"), rows)


@click.command("verify-export")
@ending_on_sigterm()
@click.argument("folder", metavar="EXPORT", type=FolderValue())
@click.option(
    "--signatures", is_flag=True, help="Also verify the signature of every post (about 20,000 per second and core)."
)
@json_option
def verify(folder: ObjectFolder, signatures: bool, as_json: bool) -> int:
    """Verify every byte of an export.

    EXPORT is a path or a URI. Exit status 1 if problems are found, 2 if EXPORT is not an export.

    Example: `cablestore verify-export garden-export --signatures`
    """
    out = Output(as_json=as_json)
    with out.progress("verifying", None) as progress:
        report = verify_export(folder, signatures=signatures, progress=progress)
    for problem in report.problems:
        out.say(f"✗ {safe(str(problem))}", problem=problem.what, file=problem.file)
    if report.problem_count > len(report.problems):
        out.note(f"and {report.problem_count - len(report.problems):,} more")
    verdict = (
        no_problems(signatures=signatures)
        if report.is_clean
        else f"{counted(report.problem_count, 'problem')}. Copy or create the export again"
    )
    out.say(
        f"{counted(report.posts, 'post')}, {counted(report.tombstones, 'tombstone')}: {verdict}",
        posts=report.posts,
        tombstones=report.tombstones,
        problems=report.problem_count,
    )
    return 0 if report.is_clean else 1


COMMANDS: Final = (export, import_, verify)
