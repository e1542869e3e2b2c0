"""The group `archive`. Its commands are imported on first use, because their dependencies load slowly."""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import cache
from typing import Any, Final

import click

from cablestore.cli.options import strict
from cablestore.errors import ArchiveError
from cablestore.extras import naming_extras


@cache
@naming_extras("archives need", ArchiveError)
def _commands() -> dict[str, click.Command]:
    from cablestore.cli import archive_content, archive_fetch, archive_local, archive_publish, archive_run  # noqa: PLC0415 - see above
    from cablestore.cli.reindex import make  # noqa: PLC0415 - as above

    modules = (archive_content, archive_fetch, archive_publish, archive_local, archive_run)
    commands = [make, *(command for module in modules for command in module.COMMANDS)]
    return {str(command.name): strict(command) for command in commands}


class _ArchiveGroup(click.Group):
    """Group that imports its commands on first use."""

    @property
    def commands(self) -> MutableMapping[str, click.Command]:
        """Commands by name."""
        return _commands()

    @commands.setter
    def commands(self, _: MutableMapping[str, click.Command]) -> None:
        """Ignore the empty table of the base class."""

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve the two-word command `content delete`. `content` cannot be a group: its argument is a folder."""
        two_words = " ".join(args[:2])
        if two_words in self.commands:
            return two_words, self.commands[two_words], args[2:]
        return super().resolve_command(context, args)

    def invoke(self, context: click.Context) -> Any:
        with naming_extras("archives need", ArchiveError):
            return super().invoke(context)


@click.group(cls=_ArchiveGroup)
def archive() -> None:
    """Create, seed and fetch weekly archives of a community.

    Archives need the extra `archive`.
    """


COMMANDS: Final = (archive,)
