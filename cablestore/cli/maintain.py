"""Commands that maintain a store: check, rebuild, dump, prune, compact."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from cablestore.cli.options import common_options, reading_options, with_store, with_store_to_read
from cablestore.cli.output import Output, all_is_well, safe
from cablestore.cli.values import Moment, public_key
from cablestore.index.rebuild import RebuildReport
from cablestore.store.closed import ClosedStore
from cablestore.store.options import StoreOptions
from cablestore.store.store import CableStore
from cablestore.views.installed import installed_catalog


@click.command()
@click.option(
    "--signatures", is_flag=True, help="Also verify the signature of every post, about 20,000 per second and core."
)
@reading_options
def check(path: Path, out: Output, signatures: bool, read_only: bool) -> int:
    """Compare every row with the posts that it comes from. Exit status 1 if something is wrong."""
    catalog = installed_catalog()
    with CableStore.open(path, create=False, options=StoreOptions(catalog=catalog), read_only=read_only) as store:
        posts = sum(store.stats().posts.values())
    with out.progress("checking", posts) as progress:
        closed = ClosedStore(path, catalog=catalog, read_only=read_only)
        report = closed.check(signatures=signatures, progress=progress)
    for problem in report.problems:
        out.say(f"✗ {safe(str(problem))}", problem=problem.what, view=problem.view, key=problem.key.hex())
    if report.problem_count > len(report.problems):
        out.note(f"and {report.problem_count - len(report.problems):,} more")
    verdict = (
        all_is_well(signatures=signatures)
        if report.is_clean
        else f"{report.problem_count:,} problems: `cablestore rebuild` repairs them"
    )
    out.say(
        f"{report.posts:,} posts, {report.tombstones:,} tombstones, {report.rows:,} rows: {verdict}",
        posts=report.posts,
        tombstones=report.tombstones,
        rows=report.rows,
        problems=report.problem_count,
    )
    return 0 if report.is_clean else 1


@click.command()
@click.option(
    "--drop-view",
    "dropped",
    multiple=True,
    metavar="NAME",
    help="Remove this view, whose package is not installed; repeatable.",
)
@common_options
def rebuild(path: Path, out: Output, dropped: tuple[str, ...]) -> int:
    """Rebuild every view from the posts. Exit status 1 if posts or deletions are lost, or may be.

    It also works on stores that cannot be opened because views are outdated or files are damaged. It rejects a store
    with views whose package is not installed, unless --drop-view names them.
    """
    with out.progress("rebuilding", None) as progress:
        closed = ClosedStore(path, catalog=installed_catalog())
        report = closed.rebuild(drop_views=frozenset(dropped), progress=progress)
    for what, count in report.damaged.items():
        out.say(f"✗ lost: {count:,} of: {what}", lost=what, count=count)
    if report.kept_aside:
        out.note(f"the damaged database is kept in {report.kept_aside}: remove it when you no longer need it")
    if report.may_lack_deletions:
        out.note("deletions may be missing, so deleted posts may be back: `cablestore sync` with a peer brings them")
    out.say(
        f"rebuilt {report.posts:,} posts and {report.tombstones:,} tombstones{_lost(report)}",
        posts=report.posts,
        tombstones=report.tombstones,
        lost=sum(report.damaged.values()),
        lost_posts=report.lost_posts,
        lost_posts_at_least=report.lost_posts_at_least,
        posts_before=report.posts_before,
        may_lack_deletions=report.may_lack_deletions,
    )
    return 0 if report.has_all_posts else 1


def _lost(report: RebuildReport) -> str:
    """Return the end of a sentence about the posts that a rebuild lost."""
    if not report.damaged:
        return ""
    if report.lost_posts is None:
        return f"; {unknown_loss(report.lost_posts_at_least)}"
    of = "" if report.posts_before is None else f" of {report.posts_before:,}"
    return f"; {report.lost_posts:,} post{'s' * (report.lost_posts != 1)} lost{of}"


def unknown_loss(at_least: int) -> str:
    """Return a clause about an unknown number of lost posts."""
    return "the number of lost posts is unknown" + (f": at least {at_least:,}" if at_least else "")


@click.command()
@click.option("--digest", is_flag=True, help="Print only a checksum of all rows. Equal stores have equal checksums.")
@with_store_to_read
def dump(store: CableStore, out: Output, digest: bool) -> None:
    """Print every row, to compare stores.

    The arrival log and local rows are left out. This is not an export: no command reads it back.
    """
    if digest:
        found = store.dump_digest()
        out.say(found, digest=found)
        return
    for key, value in store.dump():
        out.say(f"{key.decode(errors='backslashreplace')}\t{value.hex()}", key=key.hex(), value=value.hex())
        if not out.has_reader():
            return


@click.command()
@click.option(
    "--before",
    "before_ms",
    type=Moment(),
    help="Discard texts and superseded state dated before this time: 2024-01-31, or 180d.",
)
@click.option(
    "--keep",
    "keep_newest",
    type=click.IntRange(0),
    metavar="N",
    help="Discard all texts of each channel but the newest N.",
)
@click.option("--author", "by_author", type=public_key, help="Discard all posts of this public key.")
@with_store
def prune(
    store: CableStore, out: Output, before_ms: int | None, keep_newest: int | None, by_author: bytes | None
) -> None:
    """Discard posts from this store only, to save space. Deletions are kept."""
    if before_ms is None and keep_newest is None and by_author is None:
        raise click.UsageError("say what to discard: --before, --keep or --author")
    with out.progress("pruning", None) as progress:
        count = store.prune(before_ms=before_ms, keep_newest=keep_newest, by_author=by_author, progress=progress)
    out.say(f"discarded {count:,} posts", discarded=count)


@click.command()
@with_store
def compact(store: CableStore, out: Output) -> None:
    """Rewrite the database to use the least space."""
    before = sum(store.stats().disk_size_bytes.values())
    store.compact()
    after = sum(store.stats().disk_size_bytes.values())
    out.say(f"{before:,} bytes before, {after:,} after", before_size_bytes=before, after_size_bytes=after)


COMMANDS: Final = (check, rebuild, dump, prune, compact)
