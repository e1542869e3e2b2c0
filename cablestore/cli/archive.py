"""The group `archive`, and its commands create, list, verify, import, status."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cablestore.cli import archive_fetch, archive_give, archive_run
from cablestore.cli.archive_fetch import import_and_tell, tell_problem
from cablestore.cli.archive_options import (
    cabal_key_option,
    choice_options,
    control_option,
    dialect_of,
    draft8_option,
    folder_argument,
    key_of,
    making_options,
    needs_extra,
    read_archives,
    row,
    tell_created,
    week_of,
    writable,
)
from cablestore.cli.archive_run import seeding_now
from cablestore.cli.options import json_option, with_store
from cablestore.cli.output import Output
from cablestore.cli.remote import offered
from cablestore.cli.values import Duration
from cablestore.errors import ArchiveError
from cablestore.store.store import CableStore, system_clock_ms

if TYPE_CHECKING:
    from cablestore.archive.format.announcement import Link
    from cablestore.archive.format.profile import Entry
    from cablestore.archive.local import LocalArchives
    from cablestore.archive.member import ImportLog

# Archives need an extra, so each command imports what it uses.


@click.group()
def archive() -> None:
    """Make, give and fetch weekly archives of a community.

    Archives need an extra: pip install 'cablestore[archive]'.
    """


@offered()
@click.command()
@folder_argument
@making_options
@click.option(
    "--settle",
    "settle_ms",
    type=Duration(),
    metavar="DURATION",
    help="Only weeks that ended at least this long ago: 30m.",
)
@with_store
@needs_extra
def create(
    store: CableStore,
    out: Output,
    folder: Path,
    profile: str,
    cabal_key: str | None,
    public: bool,
    settle_ms: int | None,
) -> None:
    """Create archives of all past weeks below FOLDER.

    Run it again each week: existing archives stay.
    """
    from cablestore.archive.create import create_archives  # noqa: PLC0415 - an extra
    from cablestore.archive.folder import ArchiveFolder  # noqa: PLC0415 - as above
    from cablestore.archive.format.profile import PROFILES  # noqa: PLC0415 - as above
    from cablestore.archive.writer import ArchivePlan  # noqa: PLC0415 - as above

    plan = ArchivePlan(PROFILES[profile], store.identity, store.dialect, None if public else key_of(cabal_key))
    community = store.identity.public_key.hex()
    files = ArchiveFolder(writable(folder) / community)
    with out.progress("archiving (each post twice: read, archived)", None) as progress:
        made = create_archives(store, files, plan, system_clock_ms() - (settle_ms or 0), progress)
    tell_created(out, community, made)


@click.command("list")
@folder_argument
@control_option
@cabal_key_option
@draft8_option
@json_option
@needs_extra
def list_(folder: Path, control: str, cabal_key: str | None, draft8: bool, as_json: bool) -> None:
    """List the archives of a community below FOLDER: weeks, posts, sizes.

    The size of an archive that is not in FOLDER is `-`.
    """
    found = read_archives(folder, control, cabal_key, dialect_of(draft8=draft8))
    rows = (row(found.verified, entry, found.size_bytes(entry)) for entry in found.verified.index.entries)
    Output(as_json=as_json).table(("week", "posts", "size_bytes", "channels", "archive"), rows)


@click.command()
@folder_argument
@control_option
@cabal_key_option
@draft8_option
@json_option
@needs_extra
def verify(folder: Path, control: str, cabal_key: str | None, draft8: bool, as_json: bool) -> int:
    """Verify every byte of a community's archives, and the signature of every post.

    Exit status 1 if something is wrong.
    """
    from cablestore.archive.format.archive import verified_content  # noqa: PLC0415 - as above
    from cablestore.protocol.crypto import are_signed  # noqa: PLC0415 - as above

    out = Output(as_json=as_json)
    dialect = dialect_of(draft8=draft8)
    found = read_archives(folder, control, cabal_key, dialect)
    wrong = posts = 0
    for entry in found.verified.index.entries:
        try:
            held, _ = verified_content(found.verified, entry, found.stored(entry), dialect, key_of(cabal_key))
            unsigned = len(held) - sum(are_signed([post.raw for post in held]))
            problem = f"{unsigned:,} posts are not signed by their authors" if unsigned else ""
            posts += len(held)
        except ArchiveError as error:
            problem = str(error)
        if problem:
            wrong += 1
            out.say(f"✗ {entry.archive_id}: {problem}", archive=entry.archive_id, problem=problem)
    verdict = "all is well" if not wrong else f"{wrong:,} archives are damaged or missing: fetch them again"
    out.say(f"{len(found.verified.index.entries):,} archives, {posts:,} posts: {verdict}", posts=posts, damaged=wrong)
    return 1 if wrong else 0


@offered()
@click.command("import")
@folder_argument
@control_option
@cabal_key_option
@choice_options
@with_store
@needs_extra
def import_(
    store: CableStore,
    out: Output,
    folder: Path,
    control: str,
    cabal_key: str | None,
    latest: bool,
    start_ms: int | None,
    end_ms: int | None,
    merge: bool,
) -> int:
    """Import the archives below FOLDER: in their weeks and channels the store then has what they have.

    Exit status 1 if some are missing or damaged; the others are imported nevertheless.
    """
    from cablestore.archive.member import ImportLog, wanted  # noqa: PLC0415 - as above

    found = read_archives(folder, control, cabal_key, store.dialect)
    imported = ImportLog(folder / control, store.identity.public_key)
    entries = wanted(found.verified, imported, latest=latest, start_ms=start_ms, end_ms=end_ms)
    missing: list[Entry] = []
    fetched = _here(found, entries, missing)
    damaged = import_and_tell(store, out, found.verified, fetched, imported, key_of(cabal_key), merges=merge)
    for entry in missing:
        tell_problem(out, entry, "not here")
    if missing:
        out.note(f"{len(missing):,} archives are not here: fetch them")
    return 1 if missing or damaged else 0


def _here(found: LocalArchives, entries: list[Entry], missing: list[Entry]) -> Iterator[tuple[Entry, bytes]]:
    """Yield the archives that are in the folder. Add the others to `missing`."""
    for entry in entries:
        try:
            stored = found.stored(entry)
        except ArchiveError:
            missing.append(entry)
        else:
            yield entry, stored


@offered()
@click.command()
@folder_argument
@control_option
@cabal_key_option
@with_store
@needs_extra
def status(store: CableStore, out: Output, folder: Path, control: str, cabal_key: str | None) -> None:
    """Show the newest announcement of a control node, and which of its archives are in FOLDER, imported, or missing.

    If a process seeds them from FOLDER, show also its address, its peers and how much it uploaded.
    """
    from cablestore.archive.format.announcement import link_text  # noqa: PLC0415 - as above
    from cablestore.archive.local import community_folder, local_archives  # noqa: PLC0415 - as above
    from cablestore.archive.member import ImportLog, newest_announcement  # noqa: PLC0415 - as above

    control_key = bytes.fromhex(control)
    announced = newest_announcement(store, control_key)
    imported = ImportLog(folder / control, store.identity.public_key)
    fields: dict[str, Any] = {
        "link": link_text(announced[1].link) if announced else None,
        "announced_ms": announced[0] if announced else None,
        "announced": out.when(announced[0]) if announced else None,
        "is_control": store.identity.public_key == control_key,
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
        said = "announce the link" if is_control else "fetch newest"
        problem = f"the archives that are here are not those of the newest announcement: {said}"
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
    """Tell whether the index in the folder is the announced one; None if a control node published it elsewhere."""
    from cablestore.archive.content.community import CidFolder  # noqa: PLC0415 - as above
    from cablestore.archive.format.cid import Cid  # noqa: PLC0415 - as above
    from cablestore.archive.torrent.engine import has_index_of  # noqa: PLC0415 - as above

    if not isinstance(link, Cid):
        return link.community == control and has_index_of(link, folder, folder)
    try:
        return CidFolder(folder / control).index_cid() == link or (None if is_control else False)
    except ArchiveError:  # it is damaged
        return False


def _known(found: LocalArchives | None, imported: ImportLog, *, is_control: bool) -> dict[str, Any]:
    """Return the fields that come from the index in the folder; None for each if there is no index."""
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
        "last_week": week_of(last) if last else None,
        "last_week_ms": last.period.from_ms if last else None,
    }


for command in (
    create,
    list_,
    verify,
    import_,
    status,
    *archive_give.COMMANDS,
    *archive_run.COMMANDS,
    *archive_fetch.COMMANDS,
):
    archive.add_command(command)

COMMANDS: Final = (archive,)
