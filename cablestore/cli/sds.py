"""The group `sds`: commands about causal logs.

The commands import `cablestore.sds` when they run, because other commands do not need it.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cablestore.cli.options import reading_options
from cablestore.cli.output import Output, size
from cablestore.cli.stores import connect_to_owner
from cablestore.errors import OpenError, StoreLockedError
from cablestore.index.folder import CAUSAL_LOGS
from cablestore.index.header import peek

if TYPE_CHECKING:
    from cablestore.sds.log import ChannelStatus

_COLUMNS: Final = (
    "channel",
    "sender",
    "messages",
    "waiting",
    "missing",
    "unacknowledged",
    "lost",
    "effects",
    "lamport",
    "on_disk",
)


@click.group()
def sds() -> None:
    """Inspect causal logs, which order messages by cause.

    The order is the same for all members of a channel.
    """


@click.command()
@reading_options
def status(path: Path, out: Output, read_only: bool) -> None:
    """Show for each channel how many messages are in the log, waiting, missing, unacknowledged, or lost.

    `effects` is the number of effects that the application has not confirmed.

    Example: `cablestore sds status -s my-store`
    """
    if peek(path) is None and not (path / CAUSAL_LOGS).is_dir():
        raise OpenError(f"no store and no causal logs found at {path}. Check the path of the store")
    if not (path / CAUSAL_LOGS).is_dir():
        out.note("no causal logs")
        return
    found = _found(path, read_only=read_only)
    if not found:
        out.note("no channels")
    out.table(_COLUMNS, map(asdict if out.as_json else partial(_row, out), found))


def _found(path: Path, *, read_only: bool) -> list[ChannelStatus]:
    """Return the status of each channel. If another process has the logs open, request the status from it."""
    from cablestore.sds.log import CausalLog  # noqa: PLC0415 - see above
    from cablestore.sds.posts import channel_status  # noqa: PLC0415 - see above

    try:
        with CausalLog.open(path, create=False, read_only=read_only) as log:
            return log.status()
    except StoreLockedError:
        owner = connect_to_owner(path)
        if owner is None:
            raise
    from cablestore.remote.store import run  # noqa: PLC0415 - most commands do not need it

    with owner as store:
        return run(store, channel_status)


def _row(out: Output, found: ChannelStatus) -> dict[str, Any]:
    lamport = out.when(found.lamport_ms, "%Y-%m-%d %H:%M:%S")  # with seconds, so that it can be compared with a clock
    return {**asdict(found), "lamport": lamport, "on_disk": size(found.disk_size_bytes)}


sds.add_command(status)
COMMANDS: Final = (sds,)
