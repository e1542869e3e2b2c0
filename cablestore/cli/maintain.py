"""Commands that maintain a store: check, rebuild, dump, prune, compact."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from cablestore.cli.options import common_options, reading_options, with_store, with_store_to_read
from cablestore.cli.output import Output, no_problems, safe
from cablestore.cli.stores import on_closed_store, open_or_connect, open_to_read
from cablestore.cli.values import Moment, public_key
from cablestore.index.check import CheckReport
from cablestore.index.last_check import note_check
from cablestore.index.rebuild import RebuildReport
from cablestore.plurals import counted
from cablestore.store import retention
from cablestore.store.closed import ClosedStore
from cablestore.store.options import StoreOptions, system_clock_ms
from cablestore.store.store import CableStore
from cablestore.views.installed import installed_catalog


@click.command()
@click.option(
    "--signatures", is_flag=True, help="Also verify the signature of every post (about 20,000 per second and core)."
)
@reading_options
def check(path: Path, out: Output, signatures: bool, read_only: bool) -> int:
    """Verify every row against the posts. Exit status 1 if problems are found.

    If `serve` is running, the present state is verified, and `serve` continues to answer.

    Example: `cablestore check --signatures`
    """
    report = on_closed_store(path, lambda path: _checked(path, out, signatures=signatures, read_only=read_only))
    if not read_only:  # the check of a checkpoint is recorded only in the checkpoint
        note_check(path, system_clock_ms(), report, signatures=signatures)
    for problem in report.problems:
        out.say(f"✗ {safe(str(problem))}", problem=problem.what, view=problem.view, key=problem.key.hex())
    if report.problem_count > len(report.problems):
        out.note(f"and {report.problem_count - len(report.problems):,} more")
    verdict = (
        no_problems(signatures=signatures)
        if report.is_clean
        else f"{counted(report.problem_count, 'problem')}. Run `cablestore rebuild` to repair the store"
    )
    out.say(
        f"{counted(report.posts, 'post')}, {counted(report.tombstones, 'tombstone')}, {counted(report.rows, 'row')}: "
        f"{verdict}",
        posts=report.posts,
        tombstones=report.tombstones,
        rows=report.rows,
        problems=report.problem_count,
    )
    return 0 if report.is_clean else 1


def _checked(path: Path, out: Output, *, signatures: bool, read_only: bool) -> CheckReport:
    catalog = installed_catalog()
    with CableStore.open(path, create=False, options=StoreOptions(catalog=catalog), read_only=read_only) as store:
        posts = sum(store.stats().posts.values())
    with out.progress("checking", posts) as progress:
        closed = ClosedStore(path, catalog=catalog, read_only=read_only)
        return closed.check(signatures=signatures, progress=progress)


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
    """Rebuild every view from the posts. Exit status 1 if posts or deletions are lost, or may be lost.

    The command also works on stores that cannot be opened because views are outdated or files are damaged. The command
    rejects a store with views whose package is not installed, unless --drop-view names them.

    Example: `cablestore rebuild -s my-store`
    """
    with out.progress("rebuilding", None) as progress:
        closed = ClosedStore(path, catalog=installed_catalog())
        report = closed.rebuild(drop_views=frozenset(dropped), progress=progress)
    for what, count in report.damaged.items():
        out.say(f"✗ lost: {what} ({count:,})", lost=what, count=count)
    if report.kept_aside:
        out.note(f"the damaged database is kept in {report.kept_aside}. Remove it when you no longer need it")
    if report.may_lack_deletions:
        out.note(
            "deletions may be lost, so deleted posts may be visible again. Run `cablestore sync` with a peer to fetch "
            "the deletions"
        )
    out.say(
        f"rebuilt {counted(report.posts, 'post')} and {counted(report.tombstones, 'tombstone')}{_lost(report)}",
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
    return f"; lost {counted(report.lost_posts, 'post')}{of}"


def unknown_loss(at_least: int) -> str:
    """Return a clause about an unknown number of lost posts."""
    return "the number of lost posts is unknown" + (f": at least {at_least:,}" if at_least else "")


@click.command()
@click.option("--digest", is_flag=True, help="Print only a checksum of all rows. Equal stores have equal checksums.")
@with_store_to_read
def dump(store: CableStore, out: Output, digest: bool) -> None:
    """Print every row, to compare stores.

    The output does not contain the arrival log and local rows. It is not an export, and cannot be imported.

    Example: `cablestore dump --digest`
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
    help="Discard messages and superseded state dated before this time, such as 2024-01-31 or 180d.",
)
@click.option(
    "--keep",
    "keep_newest",
    type=click.IntRange(0),
    metavar="N",
    help="Discard all but the newest N messages of each channel.",
)
@click.option("--author", "by_author", type=public_key, help="Discard all posts of this public key.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Count the posts that would be discarded, by channel and type, without discarding them.",
)
@common_options
def prune(
    path: Path,
    out: Output,
    before_ms: int | None,
    keep_newest: int | None,
    by_author: bytes | None,
    dry_run: bool,
) -> None:
    """Discard posts from this store only, to save space. Deletions are kept.

    Example: `cablestore prune --before 180d`
    """
    if before_ms is None and keep_newest is None and by_author is None:
        raise click.UsageError("missing option: select the posts to discard with --before, --keep or --author")
    if dry_run:
        _print_chosen(path, out, before_ms, keep_newest, by_author)
        return
    with open_or_connect(path) as store, out.progress("pruning", None) as progress:
        count = store.prune(before_ms=before_ms, keep_newest=keep_newest, by_author=by_author, progress=progress)
    out.say(f"discarded {counted(count, 'post')}", discarded=count)


def _print_chosen(
    path: Path, out: Output, before_ms: int | None, keep_newest: int | None, by_author: bytes | None
) -> None:
    def find(path: Path) -> list[retention.ChosenPosts]:
        with open_to_read(path, read_only=True) as store, store.snapshot() as state:
            hashes = retention.chosen(state.reader, before_ms, keep_newest, by_author)
            return retention.summary(state.reader, hashes, progress)

    with out.progress("reading", None) as progress:
        found = on_closed_store(path, find)
    if found:
        rows = [each._asdict() | {"first": out.when(each.first_ms), "last": out.when(each.last_ms)} for each in found]
        out.table(("channel", "type_name", "posts", "first", "last"), rows)
    count = sum(each.posts for each in found)
    out.say(f"would discard {counted(count, 'post')}", would_discard=count)


@click.command()
@with_store
def compact(store: CableStore, out: Output) -> None:
    """Compact the database to free disk space.

    Example: `cablestore compact -s my-store`
    """
    before = sum(store.stats().disk_size_bytes.values())
    store.compact()
    after = sum(store.stats().disk_size_bytes.values())
    out.say(
        f"database size: {before:,} bytes before, {after:,} bytes after",
        before_size_bytes=before,
        after_size_bytes=after,
    )


COMMANDS: Final = (check, rebuild, dump, prune, compact)
