"""Options of `serve` for maintenance: regular backups, and the age at which posts are removed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from cablestore.backup.keep import KeepRule
from cablestore.cli.options import all_of
from cablestore.cli.values import FolderValue, channel_name, duration, text_value
from cablestore.maintenance import BackupPlan, MaintenancePlan
from cablestore.store.keep_ages import KeepAges

_FOREVER: Final = "forever"
_BACKUP_EVERY: Final = "1d"


@text_value("rule", str)
def keep_rule(text: str) -> str:
    """Check a rule for restore points and return it."""
    KeepRule.parse(text)
    return text


@text_value("age", int)
def age(text: str) -> int | None:
    """Return an age in milliseconds, or None for `forever`."""
    return None if text == _FOREVER else duration.convert(text, None, None)


@text_value("channel and age", tuple)
def channel_age(text: str) -> tuple[str, int | None]:
    """Return the channel and the age of NAME=AGE. The name may contain `=`."""
    name, separator, length = text.rpartition("=")
    if not separator:
        raise ValueError(f"invalid value {text!r}: expected a channel and an age, such as news=1y or archive=forever")
    return channel_name.convert(name, None, None), age.convert(length, None, None)


maintenance_options = all_of(
    click.option(
        "--backup-to",
        type=FolderValue(),
        metavar="DIR",
        help="Back up the store to this folder or URI at regular intervals [default: no backups].",
    ),
    click.option(
        "--backup-every",
        type=duration,
        metavar="DURATION",
        help=f"Interval between backups [default: {_BACKUP_EVERY}].",
    ),
    click.option(
        "--backup-keep",
        type=keep_rule,
        metavar="RULE",
        help="Keep restore points, as `backup --keep` does [default: the rule of the backup].",
    ),
    click.option(
        "--backup-require-mount/--no-backup-require-mount",
        default=False,
        help="Reject a backup folder that is not on a disk mounted below / [default: off].",
    ),
    click.option(
        "--keep",
        type=age,
        metavar="AGE",
        default=_FOREVER,
        show_default=True,
        help="Remove messages older than this, such as 90d, from this store, as `prune --before` does.",
    ),
    click.option(
        "--keep-channel",
        type=channel_age,
        multiple=True,
        metavar="NAME=AGE",
        help="Age for one channel instead of --keep, such as news=1y or news=forever; repeatable.",
    ),
)
"""Options of `serve` for maintenance."""

PARAMETERS: Final = frozenset(
    {"backup_to", "backup_every", "backup_keep", "backup_require_mount", "keep", "keep_channel"}
)
"""Parameters of these options. All of them can change while `serve` runs."""


def maintenance_of(chosen: Mapping[str, Any]) -> MaintenancePlan:
    """Return the maintenance plan that options select. Raises UsageError for an option without effect."""
    to = chosen["backup_to"]
    backup = None
    if to is not None:
        every_ms = chosen["backup_every"] or duration.convert(_BACKUP_EVERY, None, None)
        backup = BackupPlan(to.full_uri, every_ms, chosen["backup_keep"], chosen["backup_require_mount"])
    elif without_effect := [name for name in ("backup_every", "backup_keep") if chosen[name] is not None]:
        raise click.UsageError(f"--{without_effect[0].replace('_', '-')} needs --backup-to")
    return MaintenancePlan(backup, KeepAges(chosen["keep"], dict(chosen["keep_channel"])))
