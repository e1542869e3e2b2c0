"""What the commands for archives share: options whose values are plain text, which another process can be given, and folders."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cablestore.cli.output import Moment, Output, size
from cablestore.cli.values import CabalKey
from cablestore.errors import ArchiveError
from cablestore.protocol.dialect import DRAFT8, LEGACY, Dialect
from cablestore.protocol.keys import parse_hex

if TYPE_CHECKING:
    from cablestore.archive.format.index import VerifiedIndex
    from cablestore.archive.format.profile import Entry
    from cablestore.archive.local import LocalArchives
    from cablestore.archive.writer import CreateReport

# What archives need is an extra: it is imported by the commands that use it.

_EXTRA = frozenset({"aiohttp", "google", "Crypto", "libtorrent"})


def needs_extra(function: Callable[..., Any]) -> Callable[..., Any]:
    """Say how to install the extra where it is missing."""

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


class KeyText(click.ParamType[str]):
    """A public key, as 64 hex digits in lower case, which name a community."""

    name = "public key"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the digits."""
        del param, ctx
        return parse_hex(str(value), "a public key").hex()


class CabalKeyText(click.ParamType[str]):
    """A cabal key, as 64 hex digits."""

    name = "key"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the digits."""
        return CabalKey().convert(value, param, ctx).hex()


def key_of(cabal_key: str | None) -> bytes | None:
    """Return the cabal key that an option gave."""
    return None if cabal_key is None else bytes.fromhex(cabal_key)


def address(text: str) -> tuple[str, int]:
    """Return host and port of IP:PORT. Raises UsageError."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        raise click.UsageError(f"{text!r} is no address: expected IP:PORT, as in 127.0.0.1:9025")
    return host.strip("[]"), int(port)


# --- options --------------------------------------------------------------------------------------

folder_argument = click.argument(
    "folder", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path, resolve_path=True)
)
control_option = click.option(
    "--control", type=KeyText(), required=True, help="The public key of the community's control node."
)
cabal_key_option = click.option(
    "--cabal-key",
    type=CabalKeyText(),
    envvar="CABLESTORE_CABAL_KEY",
    metavar="@FILE|HEX",
    help="Of archives that are encrypted.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one value a line.")
draft8_option = click.option("--draft8", is_flag=True, help="Of posts in the specification's dialect.")


def making_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how archives are made."""
    for option in (
        click.option("--public", is_flag=True, help="Do not encrypt, even with a cabal key."),
        cabal_key_option,
        click.option("--profile", type=click.Choice(["rfc61", "status-go"]), default="rfc61", show_default=True),
    ):
        function = option(function)
    return function


def seeding_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of who gives archives over BitTorrent."""
    for option in (
        click.option(
            "--upload-rate", type=click.IntRange(0), default=0, metavar="BYTES", help="A second; 0 for no limit."
        ),
        click.option("--dht", is_flag=True, help="Be found by anyone who has the link."),
        click.option("--tracker", "trackers", multiple=True, help="Asked, and named in the link; repeatable."),
        click.option("--listen", default="127.0.0.1:9025", show_default=True, metavar="HOST:PORT"),
    ):
        function = option(function)
    return function


def choice_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose weeks, and --merge."""
    for option in (
        click.option("--latest", is_flag=True, help="Only the latest week."),
        click.option("--after", "start_ms", type=Moment(), help="Only weeks that end after: 2024-01-31, or 180d."),
        click.option("--before", "end_ms", type=Moment(), help="Only weeks that begin before."),
        click.option("--merge", is_flag=True, help="Keep posts of an archive's weeks and channels that it lacks."),
    ):
        function = option(function)
    return function


# --- folders --------------------------------------------------------------------------------------


def writable(folder: Path) -> Path:
    """Return a folder that is made if it is not there. Raises UsageError where nothing can be written in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"{folder} cannot be made: {error.strerror}. Choose another folder") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise click.UsageError(f"nothing can be written to {folder}: choose another folder, or check its permissions")
    return folder


def dialect_of(*, draft8: bool) -> Dialect:
    """Return the dialect that the option --draft8 stands for."""
    return DRAFT8 if draft8 else LEGACY


def read_archives(folder: Path, control: str, cabal_key: str | None, dialect: Dialect) -> LocalArchives:
    """Return the archives of a community below a folder. Raises ArchiveError where there are none."""
    from cablestore.archive.local import local_archives  # noqa: PLC0415 - as said above

    found = local_archives(folder, bytes.fromhex(control), dialect, key_of(cabal_key))
    if found is None:
        raise ArchiveError(f"there are no archives of {control} below {folder}: make or fetch them")
    return found


def row(verified: VerifiedIndex, entry: Entry, size_bytes: int | None) -> dict[str, Any]:
    """Return what is told of an archive."""
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
    """Return the day on which an archive's week begins, in UTC as all weeks are."""
    return entry.period.first_day


def tell_created(out: Output, community: str, created: CreateReport, **more: Any) -> None:
    """Tell which archives were made, and which posts are in none."""
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
    """Tell what `archive create` tells with --json."""
    for digest in told["oversize"]:
        out.note(f"post {digest} is too large for any archive")
    out.say(
        f"{told['archives']:,} new archives with {told['posts']:,} posts, {size(told['size_bytes'])}, of community {told['community']}",
        **told,
    )
