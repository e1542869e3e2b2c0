"""Options and output that the `archive` commands share.

Values are plain text, so that they can go to another process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cablestore.cli.options import all_of
from cablestore.cli.output import Output, size
from cablestore.cli.values import CabalKeyText, KeyText, Moment
from cablestore.errors import ArchiveError
from cablestore.protocol.dialect import DRAFT8, LEGACY, Dialect

if TYPE_CHECKING:
    from cablestore.archive.format.index import VerifiedIndex
    from cablestore.archive.format.profile import Entry
    from cablestore.archive.local import LocalArchives
    from cablestore.archive.writer import CreateReport

# Archives need an extra, so each command imports what it uses.

_EXTRA = frozenset({"aiohttp", "google", "Crypto", "libtorrent"})


def needs_extra(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a command say how to install the extra if it is missing."""

    @wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except ModuleNotFoundError as error:
            if str(error.name).partition(".")[0] not in _EXTRA:
                raise
            raise ArchiveError(f"archives need {error.name}: run pip install 'cablestore[archive]'") from None

    return command


# --- values ---------------------------------------------------------------------------------------


def key_of(cabal_key: str | None) -> bytes | None:
    """Return the cabal key that the option holds."""
    return None if cabal_key is None else bytes.fromhex(cabal_key)


def address(text: str) -> tuple[str, int]:
    """Return host and port of IP:PORT. Raises UsageError."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        raise click.UsageError(f"{text!r} is not an address: expected IP:PORT, as in 127.0.0.1:9025")
    return host.strip("[]"), int(port)


# --- options --------------------------------------------------------------------------------------

folder_argument = click.argument(
    "folder", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path, resolve_path=True)
)
control_option = click.option(
    "--control", type=KeyText(), required=True, help="Public key of the community's control node."
)
cabal_key_option = click.option(
    "--cabal-key",
    type=CabalKeyText(),
    envvar="CABLESTORE_CABAL_KEY",
    metavar="@FILE|HEX",
    help="Key of encrypted archives.",
)
draft8_option = click.option("--draft8", is_flag=True, help="The posts are in the specification's dialect.")


making_options = all_of(
    click.option(
        "--profile",
        type=click.Choice(["rfc61", "status-go"]),
        default="rfc61",
        show_default=True,
        help="Format of the archives.",
    ),
    cabal_key_option,
    click.option("--public", is_flag=True, help="Do not encrypt, even with a cabal key."),
)
"""Options of making archives."""


seeding_options = all_of(
    click.option(
        "--listen",
        default="127.0.0.1:9025",
        show_default=True,
        metavar="HOST:PORT",
        help="Address for connections of peers.",
    ),
    click.option(
        "--tracker", "trackers", multiple=True, help="Tracker to announce to and to name in the link; repeatable."
    ),
    click.option("--dht", is_flag=True, help="Announce the torrent in the DHT, so that anyone with the link finds it."),
    click.option(
        "--upload-rate",
        type=click.IntRange(0),
        default=0,
        metavar="BYTES",
        help="Upload limit per second; 0 for no limit.",
    ),
)
"""Options of seeding over BitTorrent."""


choice_options = all_of(
    click.option(
        "--merge",
        is_flag=True,
        help="Keep posts of an archive's weeks and channels that the archive does not have.",
    ),
    click.option("--before", "end_ms", type=Moment(), help="Only weeks that begin before this time."),
    click.option(
        "--after", "start_ms", type=Moment(), help="Only weeks that end after this time: 2024-01-31, or 180d."
    ),
    click.option("--latest", is_flag=True, help="Only the latest week."),
)
"""Options that choose weeks, and --merge."""


# --- folders --------------------------------------------------------------------------------------


def writable(folder: Path) -> Path:
    """Return the folder; make it if it does not exist. Raises UsageError if nothing can be written in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"{folder} cannot be created: {error.strerror}. Choose another folder") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise click.UsageError(f"{folder} is not writable: choose another folder, or change its permissions")
    return folder


def dialect_of(*, draft8: bool) -> Dialect:
    """Return the dialect that the option --draft8 chooses."""
    return DRAFT8 if draft8 else LEGACY


def read_archives(folder: Path, control: str, cabal_key: str | None, dialect: Dialect) -> LocalArchives:
    """Return the archives of a community below a folder. Raises ArchiveError if there are none."""
    from cablestore.archive.local import local_archives  # noqa: PLC0415 - an extra

    found = local_archives(folder, bytes.fromhex(control), dialect, key_of(cabal_key))
    if found is None:
        raise ArchiveError(f"there are no archives of {control} below {folder}: create or fetch them")
    return found


def row(verified: VerifiedIndex, entry: Entry, size_bytes: int | None) -> dict[str, Any]:
    """Return the fields that are printed of an archive."""
    return {
        "week": week_of(entry),
        "posts": verified.commitments[entry.archive_id].num_posts,
        "size_bytes": size_bytes,
        "channels": len(entry.topics) - 1,
        "archive": entry.archive_id,
        "content_id": entry.cid,
        "from_ms": entry.period.from_ms,
        "to_ms": entry.period.to_ms,
    }


def week_of(entry: Entry) -> str:
    """Return the first day, in UTC, of an archive's week."""
    return entry.period.first_day


def tell_created(out: Output, community: str, created: CreateReport, **more: Any) -> None:
    """Print which archives were created, and which posts are in none of them."""
    told = {
        "community": community,
        "archives": created.archives,
        "posts": created.posts,
        "late_posts": created.late_posts,
        "oversize": [digest.hex() for digest in created.oversize],
        "size_bytes": created.size_bytes,
    }
    tell_made(out, told | more)


def tell_made(out: Output, told: dict[str, Any]) -> None:
    """Print the fields that `archive create --json` prints, as text or as JSON."""
    for digest in told["oversize"]:
        out.note(f"post {digest} is too large for any archive")
    out.say(
        f"{told['archives']:,} new archives with {told['posts']:,} posts, {size(told['size_bytes'])}, of community "
        f"{told['community']}",
        **told,
    )
