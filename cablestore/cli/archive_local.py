"""Commands on the archives in a folder: archive create, list, verify, import, status."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from cablestore.archive.content.community import CidFolder
from cablestore.archive.format.announcement import Link, link_text
from cablestore.archive.format.archive import verified_content
from cablestore.archive.format.cid import Cid
from cablestore.archive.format.profile import Entry
from cablestore.archive.local import LocalArchives, community_folder, local_archives
from cablestore.archive.member import ImportLog, newest_announcement, wanted
from cablestore.cli.archive_fetch import import_and_print, print_problem, row
from cablestore.cli.archive_options import (
    cabal_key_option,
    choice_options,
    control_option,
    create,
    creating_options,
    folder_argument,
    key_of,
    print_created,
)
from cablestore.cli.options import json_option, on_mount, reading_options, with_store, with_store_to_read
from cablestore.cli.output import NO_PROBLEMS, Output
from cablestore.cli.seeding_status import seeding_now
from cablestore.errors import ArchiveError
from cablestore.plurals import counted
from cablestore.protocol.crypto import are_signed
from cablestore.protocol.dialect import DRAFT8, LEGACY, Dialect
from cablestore.store.store import CableStore, own_key


@on_mount("folder")
@click.command("create")
@creating_options("Archive only weeks that ended at least this long ago, such as 30m.")
@reading_options
def create_command(path: Path, out: Output, read_only: bool, **making: Any) -> None:
    """Create archives of all past weeks below FOLDER.

    Run the command each week to add new archives. It keeps existing archives.

    Example: `cablestore archive create archives --cabal-key @cabal-key`
    """
    with out.progress("archiving (counts each post twice: read and archived)", None) as progress:
        made = create(path, progress, read_only=read_only, **making)
    print_created(out, made)


def _with_archives(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a community and read its index. The command gets `out`, `found`, `dialect` and `key`."""

    @folder_argument
    @control_option
    @cabal_key_option
    @click.option("--draft8", is_flag=True, help="The posts use the dialect draft8.")
    @json_option
    @wraps(function)
    def command(folder: Path, control: str, cabal_key: str | None, draft8: bool, as_json: bool) -> Any:
        dialect, key = DRAFT8 if draft8 else LEGACY, key_of(cabal_key)
        found = _archives(folder, control, dialect, key)
        return function(out=Output(as_json=as_json), found=found, dialect=dialect, key=key)

    return command


def _archives(folder: Path, control: str, dialect: Dialect, key: bytes | None) -> LocalArchives:
    """Return the archives of a community below a folder. Raises ArchiveError if none are found."""
    found = local_archives(folder, bytes.fromhex(control), dialect, key)
    if found is None:
        raise ArchiveError(f"no archives of {control} found below {folder}. Create or fetch archives first")
    return found


@click.command("list")
@_with_archives
def list_(out: Output, found: LocalArchives, **_: Any) -> None:
    """List the archives of a community below FOLDER: weeks, posts, sizes.

    The size of an archive that is not in FOLDER is `-`.

    Example: `cablestore archive list archives --control KEY`
    """
    rows = (row(found.verified, entry, found.size_bytes(entry)) for entry in found.verified.index.entries)
    out.table(("week", "posts", "size_bytes", "channels", "archive"), rows)


@click.command()
@_with_archives
def verify(out: Output, found: LocalArchives, dialect: Dialect, key: bytes | None) -> int:
    """Verify every byte of a community's archives, and the signature of every post.

    Exit status 1 if archives are damaged or missing.

    Example: `cablestore archive verify archives --control KEY`
    """
    wrong = posts = 0
    for entry in found.verified.index.entries:
        try:
            held, _ = verified_content(found.verified, entry, found.stored(entry), dialect, key)
            unsigned = len(held) - sum(are_signed([post.raw for post in held]))
            problem = f"the signature of {counted(unsigned, 'post')} is invalid" if unsigned else ""
            posts += len(held)
        except ArchiveError as error:
            problem = str(error)
        if problem:
            wrong += 1
            out.say(f"✗ {entry.archive_id}: {problem}", archive=entry.archive_id, problem=problem)
    archives = counted(len(found.verified.index.entries), "archive")
    verdict = f"{wrong:,} damaged or missing. Fetch the archives again" if wrong else NO_PROBLEMS
    out.say(f"{archives}, {counted(posts, 'post')}: {verdict}", posts=posts, damaged=wrong)
    return 1 if wrong else 0


@click.command("import")
@folder_argument
@control_option
@cabal_key_option
@choice_options
@with_store
def import_(
    store: CableStore,
    out: Output,
    folder: Path,
    control: str,
    cabal_key: str | None,
    merge: bool,
    **choice: Any,
) -> int:
    """Import the archives below FOLDER.

    Stored posts that the archive of their week and channel lacks are removed, except with --merge. Exit status 1 if
    archives are missing or damaged; the other archives are imported.

    Example: `cablestore archive import archives --control KEY`
    """
    key = key_of(cabal_key)
    found = _archives(folder, control, store.dialect, key)
    imported = ImportLog.of(store, folder / control)
    entries = wanted(found.verified, imported, **choice)
    missing: list[Entry] = []
    fetched = _here(found, entries, missing)
    damaged = import_and_print(store, out, found.verified, fetched, imported, key, merges=merge)
    for entry in missing:
        print_problem(out, entry, f"not found below {folder}")
    if missing:
        out.note(f"left out {counted(len(missing), 'missing archive')}. Fetch the archives, then import again")
    return 1 if missing or damaged else 0


def _here(found: LocalArchives, entries: list[Entry], missing: list[Entry]) -> Iterator[tuple[Entry, bytes]]:
    """Yield those archives of `entries` that are in the folder, with their bytes. Append the others to `missing`."""
    for entry in entries:
        try:
            stored = found.stored(entry)
        except ArchiveError:
            missing.append(entry)
        else:
            yield entry, stored


@click.command()
@folder_argument
@control_option
@cabal_key_option
@with_store_to_read
def status(store: CableStore, out: Output, folder: Path, control: str, cabal_key: str | None) -> None:
    """Show the newest announcement of a control node, and how many archives are in FOLDER, imported, or missing.

    If a process seeds them from FOLDER, also show its address, its peers and the uploaded bytes.

    Example: `cablestore archive status archives --control KEY`
    """
    control_key = bytes.fromhex(control)
    announced = newest_announcement(store, control_key)
    imported = ImportLog.of(store, folder / control)
    fields: dict[str, Any] = {
        "link": link_text(announced[1].link) if announced else None,
        "announced_ms": announced[0] if announced else None,
        "announced": out.when(announced[0]) if announced else None,
        "is_control": own_key(store) == control_key,
        "imported": len(imported),
    }
    is_control, problem = fields["is_control"], None
    fields["is_newest"] = is_newest = (
        _is_newest(folder, control, announced[1].link, is_control=is_control) if announced else None
    )
    try:
        found = local_archives(folder, control_key, store.dialect, key_of(cabal_key))
    except ArchiveError as error:
        found, problem = None, str(error)
    if is_newest is False and problem is None:
        said = "Announce the new link" if is_control else "Fetch `newest`"
        problem = f"the archives in {folder} differ from the newest announcement. {said}"
    fields |= {"problem": problem} | _known(found, imported, is_control=is_control)
    if is_newest is False and not is_control:
        fields["missing"] = None  # unknown without the newest index
    fields |= seeding_now(community_folder(folder, control_key))
    if out.as_json:
        out.say("", **fields)
    else:
        rows = [
            {"field": name.replace("_", " "), "value": value} for name, value in fields.items() if name[-3:] != "_ms"
        ]
        out.table(("field", "value"), rows)


def _is_newest(folder: Path, control: str, link: Link, *, is_control: bool) -> bool | None:
    """Return True if the folder contains the announced index.

    Return None if unknown: a control node may have published the index from another folder.
    """
    if not isinstance(link, Cid):
        from cablestore.archive.torrent.engine import has_index_of  # noqa: PLC0415 - libtorrent may be missing

        return link.community == control and has_index_of(link, folder, folder)
    try:
        return CidFolder(folder / control).index_cid() == link or (None if is_control else False)
    except ArchiveError:  # the index is damaged
        return False


def _known(found: LocalArchives | None, imported: ImportLog, *, is_control: bool) -> dict[str, Any]:
    """Return the fields that depend on the index in the folder. All are None if `found` is None: no index."""
    if found is None:
        return dict.fromkeys(("index", "archives", "missing", "posts", "size_bytes", "last_week", "last_week_ms"))
    entries = found.verified.index.entries
    commitments = found.verified.commitments
    last = max(entries, key=lambda entry: entry.period, default=None)
    missing = 0 if is_control else sum(not imported.has(commitments[entry.archive_id]) for entry in entries)
    return {
        "index": found.origin,
        "archives": len(entries),
        "missing": missing,
        "posts": sum(commitments[entry.archive_id].num_posts for entry in entries),
        "size_bytes": sum(found.size_bytes(entry) or 0 for entry in entries),
        "last_week": last.period.first_day if last else None,
        "last_week_ms": last.period.from_ms if last else None,
    }


COMMANDS: Final = (create_command, list_, verify, import_, status)
