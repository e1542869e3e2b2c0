"""Commands for exports: export, import, verify-export."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from cablestore.cli.output import Key, Moment, Output, common_options, safe
from cablestore.export.importer import manifests_of
from cablestore.export.manifest import Filters
from cablestore.export.verify import verify_export
from cablestore.store.closed import ClosedStore
from cablestore.store.store import CableStore


@click.command()
@click.argument("folder", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--channel", "channels", multiple=True, help="Only posts of this channel, and what is known of its users."
)
@click.option("--author", "authors", multiple=True, type=Key(), help="Only posts of this public key.")
@click.option("--after", "start_ms", type=Moment(), help="Only posts dated from then on: 2024-01-31, or 180d.")
@click.option("--before", "end_ms", type=Moment(), help="Only posts dated before.")
@common_options
def export(
    path: Path,
    out: Output,
    folder: Path,
    channels: tuple[str, ...],
    authors: tuple[bytes, ...],
    start_ms: int | None,
    end_ms: int | None,
) -> None:
    """Write the store's posts and deletions into a new folder, for other stores.

    Local-only posts stay here. Views need not be up to date, unless posts are chosen by them. Interrupted, the same command goes on where it ended; with a duration like 90d it begins
    anew.
    """
    filters = Filters(frozenset(channels), frozenset(authors), start_ms, end_ms)
    with out.progress("exporting (each post twice: read, written)", None) as progress:
        chosen = None if filters == Filters() else filters
        manifest = ClosedStore(path).export(folder, filters=chosen, progress=progress)
    posts, size_bytes = sum(manifest.posts.values()), sum(segment.size_bytes for segment in manifest.segments)
    out.say(
        f"exported {posts:,} posts and {manifest.tombstones:,} tombstones, {size_bytes:,} bytes",
        posts=manifest.posts,
        tombstones=manifest.tombstones,
        size_bytes=size_bytes,
        content_blake3=manifest.content_blake3,
    )


@click.command("import")
@click.argument("exports", metavar="EXPORT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@common_options
def import_(path: Path, out: Output, exports: tuple[Path, ...]) -> None:
    """Store what exports hold. Every post is verified.

    The store is made where there is none. Exports merge in any order; what is here already is skipped.
    """
    manifests = manifests_of(exports, None)
    total = sum(sum(manifest.posts.values()) for manifest in manifests)
    with CableStore.open(path, dialect=manifests[0].dialect) as store, out.progress("importing", total) as progress:
        summary = store.import_exports(exports, progress=progress)
    if out.as_json:
        out.say(
            "",
            posts=summary.posts,
            verdicts=dict(summary.verdicts),
            skeletons=summary.skeletons,
            refused_skeletons=summary.refused_skeletons,
        )
        return
    rows = [{"what": "posts read", "number": summary.posts}]
    rows += [{"what": f"posts {verdict}", "number": number} for verdict, number in summary.verdicts.most_common()]
    rows += [{"what": "deleted posts that are now known of", "number": summary.skeletons}]
    if summary.refused_skeletons:
        rows += [{"what": "deleted posts without proof, left out", "number": summary.refused_skeletons}]
    out.table(("what", "number"), rows)


@click.command("verify-export")
@click.argument("folder", metavar="EXPORT", type=click.Path(path_type=Path))
@click.option("--signatures", is_flag=True, help="Verify every post too, about 20,000 a second on each core.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one value a line.")
def verify(folder: Path, signatures: bool, as_json: bool) -> int:
    """Go through every byte of an export. Exit status 1 when something is wrong, 2 when it is no export."""
    out = Output(as_json=as_json)
    with out.progress("verifying", None) as progress:
        report = verify_export(folder, signatures=signatures, progress=progress)
    for problem in report.problems:
        out.say(f"✗ {safe(str(problem))}", problem=problem.what, file=problem.file)
    if report.problem_count > len(report.problems):
        out.note(f"and {report.problem_count - len(report.problems):,} more")
    verdict = "all is well" if report.is_clean else f"{report.problem_count:,} problems: copy or make the export again"
    out.say(
        f"{report.posts:,} posts, {report.tombstones:,} tombstones: {verdict}",
        posts=report.posts,
        tombstones=report.tombstones,
        problems=report.problem_count,
    )
    return 0 if report.is_clean else 1


COMMANDS: Final = (export, import_, verify)
