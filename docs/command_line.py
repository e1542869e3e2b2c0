"""The command line with all its commands loaded, for reference/commands.md."""

from cablestore.cli import cli
from cablestore.cli.commands import load_all

cli.commands.update(load_all())
