"""The group `sds`: commands about causal logs.

They import `cablestore.sds` when they run, because other commands start without it.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cablestore.cli.options import reading_options
from cablestore.cli.output import Output, size
from cablestore.cli.remote import offered
from cablestore.errors import NotAStoreError
from cablestore.index.folder import CAUSAL_LOGS
from cablestore.index.header import peek
from cablestore.store.store import CableStore

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

    All members of a channel have the same order.
    """


def _serve_status(store: CableStore, out: Output) -> None:
    """Run `status` in the process that has the store and its causal logs open."""
    if store.path is None:
        raise NotAStoreError("a store in memory has no folder for causal logs")
    from cablestore.sds.log import CausalLog  # noqa: PLC0415 - see above

    opened = CausalLog.open_here(store.path)
    if opened is None:
        _show(store.path, out)
    else:
        _tell(opened.status(), out)


@offered(_serve_status, name="sds status")
@click.command()
@reading_options
def status(path: Path, out: Output, read_only: bool) -> None:
    """Show for each channel how many messages are in the log, waiting, missing, unacknowledged, lost, or unread."""
    if peek(path) is None and not (path / CAUSAL_LOGS).is_dir():
        raise NotAStoreError(f"no store found at {path}, and there are no causal logs")
    _show(path, out, read_only=read_only)


def _show(path: Path, out: Output, *, read_only: bool = False) -> None:
    if not (path / CAUSAL_LOGS).is_dir():
        out.note("no causal logs")
        return
    from cablestore.sds.log import CausalLog  # noqa: PLC0415 - see above

    with CausalLog.open(path, create=False, read_only=read_only) as log:
        _tell(log.status(), out)


def _tell(found: list[ChannelStatus], out: Output) -> None:
    if not found:
        out.note("no channels")
    out.table(_COLUMNS, map(asdict if out.as_json else partial(_row, out), found))


def _row(out: Output, found: ChannelStatus) -> dict[str, Any]:
    lamport = out.when(found.lamport_ms, "%Y-%m-%d %H:%M:%S")  # to the second, so that it can be compared with a clock
    return {**asdict(found), "lamport": lamport, "on_disk": size(found.disk_size_bytes)}


sds.add_command(status)
COMMANDS: Final = (sds,)
