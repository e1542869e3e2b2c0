"""The command `archive fetch`, and its progress bar."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

import click
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from cablestore.archive.fetch import ArchiveSources, fetching
from cablestore.archive.format.announcement import Link, parse_link
from cablestore.archive.format.cid import Cid
from cablestore.archive.format.index import VerifiedIndex
from cablestore.archive.format.profile import Entry
from cablestore.archive.importer import ArchiveImportReport, import_deletions
from cablestore.archive.member import ImportLog, import_noted, settled_announcement, wanted
from cablestore.cli.archive_options import (
    address,
    cabal_key_option,
    choice_options,
    control_option,
    folder_argument,
    key_of,
    writable,
)
from cablestore.cli.options import on_mount, with_store
from cablestore.cli.output import Output
from cablestore.cli.service import INTERRUPTED
from cablestore.cli.values import duration
from cablestore.errors import ArchiveError
from cablestore.plurals import counted
from cablestore.store.store import CableStore

_Imports = Iterator[tuple[Entry, ArchiveImportReport]]
_PRINT_EVERY_S: Final = 1.0


@on_mount("folder")
@click.command()
@click.argument("link")
@folder_argument
@control_option
@cabal_key_option
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="IP:PORT",
    help="For a magnet link: address of a peer that has the torrent; repeatable.",
)
@click.option(
    "--tracker",
    "trackers",
    multiple=True,
    metavar="URL",
    help="Tracker to add to the magnet link; repeatable.",
)
@click.option("--dht", is_flag=True, help="For a magnet link: look for peers in the DHT.")
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="URL",
    help="For codex:CONTENT-ID: node to download from; repeatable. Nodes are tried in this order.",
)
@click.option(
    "--timeout",
    "timeout_ms",
    type=duration,
    metavar="DURATION",
    help="Timeout for an unresponsive peer [default: 20s for a torrent's metadata, else 60s].",
)
@choice_options
@with_store
def fetch(
    store: CableStore,
    out: Output,
    link: str,
    folder: Path,
    control: str,
    cabal_key: str | None,
    peers: tuple[str, ...],
    trackers: tuple[str, ...],
    dht: bool,
    nodes: tuple[str, ...],
    timeout_ms: int | None,
    **choice: Any,
) -> int:
    """Fetch from LINK the archives that the store lacks, and import them, newest first.

    LINK is a magnet link, codex:CONTENT-ID, or `newest` for the last announcement of the control node. To resume after
    an interruption, run the same command again.

    Example: `cablestore archive fetch newest archives --control KEY --dht`
    """
    timeout_s = None if timeout_ms is None else timeout_ms / 1000
    sources = ArchiveSources(tuple(map(address, peers)), trackers, dht, nodes, timeout_s)
    try:
        found = _link(store, bytes.fromhex(control), link, out)
        damaged = _fetch(store, out, found, writable(folder), control, key_of(cabal_key), sources, **choice)
    except KeyboardInterrupt:
        out.note("interrupted: fetched and imported archives are kept. Run the same command again to resume")
        return INTERRUPTED
    return 1 if damaged else 0


def _link(store: CableStore, control_key: bytes, text: str, out: Output) -> Link:
    """Return the link in `text`. For `newest`, wait for newer announcements, then return the latest link."""
    if text != "newest":
        return parse_link(text)
    found = settled_announcement(
        store, control_key, on_wait=lambda link: out.note(f"waiting for a newer announcement than {link}")
    )
    if found is None:
        raise ArchiveError(
            f"no announcement of control node {control_key.hex()} found in the store. Run `cablestore sync` with a "
            "peer first"
        )
    return found.link


def _fetch(
    store: CableStore,
    out: Output,
    link: Link,
    folder: Path,
    control: str,
    key: bytes | None,
    sources: ArchiveSources,
    *,
    merge: bool,
    **choice: Any,
) -> int:
    """Fetch and import archives. Return the number of damaged archives."""
    if isinstance(link, Cid) and not sources.nodes:
        raise click.UsageError(
            f"codex:{link} needs a node to download from. Add --node, such as --node http://127.0.0.1:8080"
        )
    imported = ImportLog.of(store, folder / control)
    with ExitStack() as stack:
        with out.progress("fetching the index", None):
            found = fetching(link, folder, bytes.fromhex(control), store.dialect, sources, key)
            community = stack.enter_context(found)
        verified = community.verified
        entries = wanted(verified, imported, **choice)
        with FetchProgress(out, len(entries)) as progress:
            fetched = community.fetch(entries, progress.moved)
            return import_and_print(store, out, verified, fetched, imported, key, merges=merge, count=progress.counted)


def import_and_print(
    store: CableStore,
    out: Output,
    verified: VerifiedIndex,
    fetched: Iterator[tuple[Entry, bytes]],
    imported: ImportLog,
    key: bytes | None,
    *,
    merges: bool,
    count: Callable[[_Imports], _Imports] = lambda imports: imports,
) -> int:
    """Import the deletions of an index, then the archives as they arrive. Print each result.

    Returns the number of damaged archives.
    """
    _print_deletions(out, import_deletions(store, verified))
    sizes: dict[Entry, int] = {}
    damaged: list[Entry] = []

    def on_damaged(entry: Entry, error: ArchiveError) -> None:
        damaged.append(entry)
        print_problem(out, entry, str(error))

    total = ArchiveImportReport()
    sized = _sized(fetched, sizes)
    for entry, found in count(
        import_noted(store, verified, sized, imported, key=key, merges=merges, on_damaged=on_damaged)
    ):
        total += found
        more = f", {found.deleted_here:,} deleted in this store" if found.deleted_here else ""
        more += f", {found.dropped:,} dropped or blocked in this store" if found.dropped else ""
        more += f", {len(found.removed):,} removed" if found.removed else ""
        out.say(
            f"week of {entry.period.first_day}: {counted(found.posts, 'new post')}, {found.known:,} known, "
            f"{found.deleted:,} deleted{more}",
            **row(verified, entry, sizes[entry]),
            new=found.posts,
            known=found.known,
            deleted=found.deleted,
            deleted_here=found.deleted_here,
            dropped=found.dropped,
            removed=[digest.hex() for digest in found.removed],
        )
    out.note(
        f"imported {counted(total.archives, 'archive')}: {counted(total.posts, 'new post')}, {len(total.removed):,} "
        "removed"
    )
    if imported.problem:
        out.note(
            f"cannot save the list of imported archives: {imported.problem}. The next import reads the same archives "
            "again"
        )
    if damaged:
        out.note(
            f"left out {counted(len(damaged), 'damaged archive')}. Run the same command again to fetch and import "
            f"{'it' if len(damaged) == 1 else 'them'}"
        )
    return len(damaged)


def row(verified: VerifiedIndex, entry: Entry, size_bytes: int | None) -> dict[str, Any]:
    """Return the fields of an archive for tables and JSON."""
    return {
        "week": entry.period.first_day,
        "posts": verified.commitments[entry.archive_id].num_posts,
        "size_bytes": size_bytes,
        "channels": len(entry.topics) - 1,
        "archive": entry.archive_id,
        "content_id": entry.cid,
        "from_ms": entry.period.from_ms,
        "to_ms": entry.period.to_ms,
    }


def _sized(fetched: Iterator[tuple[Entry, bytes]], sizes: dict[Entry, int]) -> Iterator[tuple[Entry, bytes]]:
    """Yield `fetched`, and record the sizes of the archives in `sizes`. An index by content id does not contain them."""
    for entry, stored in fetched:
        sizes[entry] = len(stored)
        yield entry, stored


def _print_deletions(out: Output, gone: list[bytes]) -> None:
    if gone:
        out.say(
            f"deleted {counted(len(gone), 'post')} of earlier weeks, as their authors requested",
            deleted_posts=[digest.hex() for digest in gone],
        )


def print_problem(out: Output, entry: Entry, problem: str) -> None:
    """Print a line with the week, the id and the problem of an archive."""
    out.say(
        f"✗ week of {entry.period.first_day}, {entry.archive_id}: {problem}",
        week=entry.period.first_day,
        archive=entry.archive_id,
        problem=problem,
    )


class FetchProgress:
    """Progress bar in bytes on a terminal. With --json, at most one JSON line per second on standard error."""

    def __init__(self, out: Output, archives: int) -> None:
        self._out = out
        self._archives = archives
        self._done = 0
        self._printed: dict[str, int] = {}
        self._printed_at_s = 0.0
        self._here = (0, 0)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=out.notes,
            disable=out.as_json or not out.notes.is_terminal,
            transient=True,
            redirect_stdout=out.console.is_terminal,
        )
        self._task = self._bar.add_task(self._description(), total=None, visible=archives > 0)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        self._print()

    def moved(self, here_bytes: int, wanted_bytes: int) -> None:
        """Show the numbers of received bytes and of all bytes to fetch."""
        self._here = (here_bytes, wanted_bytes)
        self._bar.update(self._task, completed=here_bytes, total=wanted_bytes)
        if time.monotonic() - self._printed_at_s >= _PRINT_EVERY_S:
            self._print()

    def counted(self, imports: _Imports) -> _Imports:
        """Yield imports, and show the number of imported archives."""
        for each in imports:
            self._done += 1
            self._bar.update(self._task, description=self._description())
            yield each

    def _description(self) -> str:
        return f"{self._done:,} of {counted(self._archives, 'archive')}"

    def _print(self) -> None:
        here_bytes, wanted_bytes = self._here
        progress = {
            "archives": self._done,
            "of": self._archives,
            "fetched_bytes": here_bytes,
            "wanted_bytes": wanted_bytes,
        }
        if self._out.as_json and wanted_bytes and progress != self._printed:
            self._printed, self._printed_at_s = progress, time.monotonic()
            click.echo(json.dumps(progress), err=True)


COMMANDS: Final = (fetch,)
