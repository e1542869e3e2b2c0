"""All commands by name.

The module of a command is imported when the command is used: each starts without the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import click

_MODULES: Final = {
    "write": {
        "init": "Create a new store, or show an existing one.",
        "identity": "Show your public key and name, or export the secret key.",
        "post": "Post TEXT, or the text on standard input, to CHANNEL.",
        "topic": "Set the topic of CHANNEL to TEXT, or clear it without TEXT.",
        "join": "Join CHANNEL.",
        "leave": "Leave CHANNEL.",
        "name": "Change your name to NAME.",
        "delete": "Delete posts of your own, named by their hashes or the first digits of these.",
    },
    "read": {
        "log": "Show the messages of CHANNEL, the newest last.",
        "channels": "List the channels.",
        "users": "List all users who wrote, or the members of a channel.",
        "show": "Show a post.",
        "stats": "Show counts, the size of each view, and how many posts each period has.",
    },
    "serve": {
        "serve": "Run a peer until SIGTERM or Ctrl-C: answer other peers and follow channels.",
        "sync": "Fetch once what a peer has and this store lacks.",
    },
    "reconcile": {"reconcile": "Exchange once with another store the posts that either lacks."},
    "maintain": {
        "check": "Compare every row with the posts that it comes from.",
        "rebuild": "Rebuild every view from the posts.",
        "dump": "Print every row, to compare stores.",
        "prune": "Discard posts from this store only, to save space.",
        "compact": "Rewrite the database to take the least space.",
    },
    "import_irc": {"import-irc": "Import IRC logs: files, folders, compressed files, or tar and zip archives."},
    "export": {
        "export": "Export the store's posts and deletions to a new folder, for other stores.",
        "import": "Import exports into the store.",
        "verify-export": "Verify every byte of an export.",
    },
    "sds": {"sds": "Inspect causal logs, which keep the messages of a channel in the same order for all members."},
    "reindex": {
        "archive": "Create, seed, fetch and import weekly archives of a community (pip install 'cablestore[archive]').",
        "reindex": "Rebuild all views on Spark from exports and history archives.",
        "generations": "List the databases of the store: the live one, and those that reindexing kept to go back to.",
    },
    "demo": {"demo": "Demonstrate every main feature on a conversation."},
}
"""Commands of each module and the first sentences of their help, from which `cablestore --help` makes its list."""
_MODULE_OF: Final = {name: module for module, commands in _MODULES.items() for name in commands}


class LazyGroup(click.Group):
    """Group whose commands are known by name and summary until they are used."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for commands in _MODULES.values():
            for name, summary in commands.items():
                self.add_command(click.Command(name, help=summary))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name, loaded."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else load_command(name), rest


def load_command(name: str) -> click.Command:
    """Import the module of a command and return the command."""
    from cablestore.cli.options import strict  # noqa: PLC0415 - the help of `cablestore` needs nothing of it

    commands = import_module(f"cablestore.cli.{_MODULE_OF[name]}").COMMANDS
    return strict(next(command for command in commands if command.name == name))


def load_all() -> dict[str, click.Command]:
    """Import the modules of all commands and return the commands by name."""
    return {name: load_command(name) for name in _MODULE_OF}
