"""The group `archive`. Its commands are imported when one of them is used: what they need takes a while to load."""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import cache
from typing import Any, Final

import click

from cablestore.cli.options import extra_named, strict
from cablestore.cli.remote import offered_later


@cache
@extra_named()
def _commands() -> dict[str, click.Command]:
    from cablestore.cli import archive_fetch, archive_give, archive_local, archive_run  # noqa: PLC0415 - see above
    from cablestore.cli.reindex import make  # noqa: PLC0415 - as above

    modules = (archive_fetch, archive_give, archive_local, archive_run)
    commands = [make, *(command for module in modules for command in module.COMMANDS)]
    return {str(command.name): strict(command) for command in commands}


class _ArchiveGroup(click.Group):
    """Group whose commands are imported when it is used."""

    @property
    def commands(self) -> MutableMapping[str, click.Command]:
        """The commands by name."""
        return _commands()

    @commands.setter
    def commands(self, _: MutableMapping[str, click.Command]) -> None:
        """Ignore the empty table of the base class."""

    @extra_named()
    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Names the extra if the command lacks it."""
        return super().invoke(ctx)


@click.group(cls=_ArchiveGroup)
def archive() -> None:
    """Create, seed, fetch and import weekly archives of a community (pip install 'cablestore[archive]')."""


offered_later(_commands)
COMMANDS: Final = (archive,)
