"""Options, functions and output that the `archive` commands share."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cablestore.cli.options import all_of
from cablestore.cli.output import Output, size
from cablestore.cli.stores import on_closed_store, open_to_read
from cablestore.cli.values import Moment, PathValue, cabal_key_hex, duration, public_key_hex
from cablestore.files import make_folder
from cablestore.index.batches import Progress
from cablestore.plurals import counted
from cablestore.store.options import system_clock_ms
from cablestore.store.store import own_key

if TYPE_CHECKING:
    from cablestore.archive.writer import CreateReport

# --- values ---------------------------------------------------------------------------------------


def key_of(cabal_key: str | None) -> bytes | None:
    """Return the cabal key that --cabal-key contains, or None without this option."""
    return None if cabal_key is None else bytes.fromhex(cabal_key)


def address(text: str) -> tuple[str, int]:
    """Return the host and the port of IP:PORT. Raises UsageError for other text."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal() and len(port) <= 5) or int(port) > 65_535:
        raise click.UsageError(f"invalid address {text!r}: expected IP:PORT, such as 127.0.0.1:9025")
    return host.strip("[]"), int(port)


# --- options --------------------------------------------------------------------------------------

folder_argument = click.argument("folder", metavar="FOLDER", type=PathValue(is_folder=True))
control_option = click.option(
    "--control", type=public_key_hex, required=True, help="Public key of the community's control node."
)
cabal_key_option = click.option(
    "--cabal-key",
    type=cabal_key_hex,
    envvar="CABLESTORE_CABAL_KEY",
    metavar="@FILE|HEX",
    help="Key of encrypted archives. Use a file: every user of the machine can see the command line.",
)


def content_place_options(folder_help: str) -> Callable[[Any], Any]:
    """Add --node and --content-folder. Exactly one of them is required."""
    return all_of(
        click.option("--node", metavar="URL", help="Node with the REST API of Codex, such as http://127.0.0.1:8080."),
        click.option(
            "--content-folder",
            metavar="DIR",
            type=PathValue(is_folder=True),
            help=folder_help,
        ),
    )


def require_one_place(node: str | None, content_folder: Path | None, to: str) -> None:
    """Raise UsageError unless exactly one option of `content_place_options` is given."""
    if (node is None) == (content_folder is None):
        raise click.UsageError(f"cannot {to}: use exactly one of --node URL and --content-folder DIR")


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
"""Options for creating archives."""


def creating_options(settle: str, **default: Any) -> Callable[[Any], Any]:
    """Add FOLDER and the options for creating archives. `settle` is the help of --settle."""
    return all_of(
        folder_argument,
        making_options,
        click.option(
            "--leave-out-hidden",
            is_flag=True,
            help="Leave out messages that you or your moderators hid publicly. Members who import the archives remove "
            "them too.",
        ),
        click.option("--settle", "settle_ms", type=duration, metavar="DURATION", help=settle, **default),
    )


seeding_options = all_of(
    click.option(
        "--listen",
        default="127.0.0.1:9025",
        show_default=True,
        metavar="HOST:PORT",
        help="Address for connections of peers.",
    ),
    click.option(
        "--tracker", "trackers", multiple=True, help="Tracker to announce to and to add to the link; repeatable."
    ),
    click.option("--dht", is_flag=True, help="Announce the torrent in the DHT, so that anyone with the link finds it."),
    click.option(
        "--upload-rate",
        type=click.IntRange(0),
        default=0,
        metavar="BYTES",
        help="Upload limit in bytes per second; 0 for no limit [default: 0].",
    ),
)
"""Options for seeding over BitTorrent."""


choice_options = all_of(
    click.option(
        "--merge",
        is_flag=True,
        help="Keep stored posts that the archive of their week and channel lacks.",
    ),
    click.option("--before", "before_ms", type=Moment(), help="Select only weeks that begin before this time."),
    click.option(
        "--after",
        "after_ms",
        type=Moment(),
        help="Select only weeks that end after this time, such as 2024-01-31 or 180d.",
    ),
    click.option("--latest", is_flag=True, help="Select only the latest week."),
)
"""Options that select weeks, and --merge."""


# --- folders --------------------------------------------------------------------------------------


def writable(folder: Path) -> Path:
    """Return the folder, and create it if necessary. Raises UsageError if it is not writable."""
    try:
        make_folder(folder)
    except OSError as error:
        raise click.UsageError(f"cannot create {folder}: {error.strerror}. Choose another folder") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise click.UsageError(f"{folder} is not writable. Choose another folder, or change its permissions")
    return folder


def create(
    path: Path,
    progress: Progress,
    *,
    folder: Path,
    profile: str,
    cabal_key: str | None,
    public: bool,
    leave_out_hidden: bool,
    settle_ms: int | None,
    read_only: bool = False,
) -> dict[str, Any]:
    """Create archives of past weeks, with the parameters of `creating_options`. Return the fields to print."""
    from cablestore.archive.create import create_below  # noqa: PLC0415 - needs the extra cablestore[archive]

    key = None if public else key_of(cabal_key)
    until_ms = system_clock_ms() - (settle_ms or 0)

    def work(path: Path) -> dict[str, Any]:
        with open_to_read(path, read_only=read_only) as store:
            created = create_below(
                store, writable(folder), profile, key, until_ms, leaves_out_hidden=leave_out_hidden, progress=progress
            )
            return created_fields(own_key(store).hex(), created)

    return on_closed_store(path, work)


def created_fields(community: str, created: CreateReport, **more: Any) -> dict[str, Any]:
    """Return the fields of a report, including posts, tombstones and deletions that do not fit into archives."""
    return {
        "community": community,
        "archives": created.archives,
        "posts": created.posts,
        "late_posts": created.late_posts,
        "oversize": [digest.hex() for digest in created.oversize],
        "tombstones_left_out": [digest.hex() for digest in created.tombstones_left_out],
        "deletions_left_out": [digest.hex() for digest in created.deletions_left_out],
        "size_bytes": created.size_bytes,
        **more,
    }


def left_out_note(deletions: Sequence[Any]) -> str:
    """Return the note about post/deletes that do not fit into an index."""
    return (
        f"the index is full: left out the largest {counted(len(deletions), 'post/delete')} for posts of earlier weeks. "
        "Members who import only the archives of those weeks keep the deleted posts"
    )


def print_created(out: Output, told: dict[str, Any]) -> None:
    """Print the fields that `create` returned, as text or as JSON."""
    for digest in told["oversize"]:
        out.note(f"left out post {digest}: too large for an archive")
    if untold := told["tombstones_left_out"]:
        out.note(f"left out channel, time and links of {counted(len(untold), 'deleted post')}: the archives are full")
    if deletions := told["deletions_left_out"]:
        out.note(left_out_note(deletions))
    out.say(
        f"created {counted(told['archives'], 'archive')} with {counted(told['posts'], 'post')}, "
        f"{size(told['size_bytes'])}, of community {told['community']}",
        **told,
    )
