"""All commands by name.

The module of a command is imported on first use, so that a command does not load other commands.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any, Final

import click

from cablestore.cli.sections import write_sections
from cablestore.gc_pause import end_start

_SECTIONS: Final = {
    "Write": {
        "init": ("write", "Create a new store, or show an existing store."),
        "identity": ("write", "Show your public key and name, or export the secret key."),
        "keygen": ("write", "Write a new secret key to a file."),
        "name": ("write", "Change your name to NAME."),
        "join": ("write", "Join CHANNEL."),
        "leave": ("write", "Leave CHANNEL."),
        "post": ("write", "Post TEXT, or the text on standard input, to CHANNEL."),
        "topic": ("write", "Set the topic of CHANNEL to TEXT."),
        "delete": ("write", "Delete posts of your own."),
    },
    "Read": {
        "log": ("read", "Show the messages of CHANNEL, the newest last."),
        "channels": ("read", "List the channels."),
        "users": ("read", "List all authors, or the members of a channel."),
        "search": ("search", "Search the messages for WORDS."),
        "show": ("read", "Show a post, or who deleted or dropped it."),
        "stats": ("read", "Show numbers of posts, sizes of views, and posts per period."),
    },
    "Chat": {
        "chat": ("chat", "Chat in this terminal."),
    },
    "Inspect": {
        "inspect": ("inspect", "Show a store in the browser, until Ctrl-C."),
    },
    "Moderate": {
        "moderation": ("moderate", "List moderators, and hidden, dropped and blocked targets."),
        "role": ("moderate", "Assign a role to USER."),
        "hide": ("moderate", "Hide all messages of a user, or single messages."),
        "unhide": ("moderate", "Show hidden messages again."),
        "drop": ("moderate", "Remove posts from this store, and reject them later."),
        "undrop": ("moderate", "Accept dropped posts again."),
        "block": ("moderate", "Reject posts of USERS, and do not exchange posts with them."),
        "unblock": ("moderate", "Accept the posts of USERS again."),
    },
    "Peers": {
        "invite": ("invite", "Print an invitation to the cabal for new members."),
        "serve": ("serve", "Run a peer until SIGTERM or Ctrl-C."),
        "status": ("status", "Show the state of the store and of a running `serve`."),
        "peers": ("peers", "Show, disconnect or ban the peers of `serve`."),
        "policy": ("policy", "Show or change the policy of `serve` for received posts."),
        "connect": ("connect", "Show the peers that `serve` stays connected to."),
        "sync": ("serve", "Fetch missing posts from a peer once."),
        "reconcile": ("reconcile", "Reconcile once with another store."),
    },
    "Maintain": {
        "check": ("maintain", "Verify every row against the posts."),
        "rebuild": ("maintain", "Rebuild every view from the posts."),
        "reindex": ("reindex", "Rebuild all views on Spark from exports and archives."),
        "generations": ("reindex", "List the databases of the store, or roll back to one."),
        "prune": ("maintain", "Discard posts from this store only, to save space."),
        "compact": ("maintain", "Compact the database to free disk space."),
        "dump": ("maintain", "Print every row, to compare stores."),
        "share": ("share", "Allow group access to a store, export, backup or archive."),
    },
    "Move": {
        "export": ("export", "Export the posts to a new folder, for other stores."),
        "import": ("export", "Import exports into the store."),
        "verify-export": ("export", "Verify every byte of an export."),
        "backup": ("backup", "Back up the store to a folder, incrementally."),
        "restore": ("backup", "Create a store from a backup."),
        "tables": ("tables", "Write tables of exports and archives as Parquet, on Spark."),
        "import-irc": ("import_irc", "Import IRC logs: files, folders, tar and zip archives."),
    },
    "Communities": {
        "archive": ("archive", "Create, seed and fetch weekly archives of a community."),
        "sds": ("sds", "Inspect causal logs, which order messages by cause."),
    },
    "Learn": {
        "demo": ("demo", "Demonstrate every main feature on a conversation."),
        "completion": ("completion", "Print a shell completion script."),
    },
}
"""Commands by section: the module, and the first sentence of the help for `cablestore --help`."""
_MODULE_OF: Final = {name: module for commands in _SECTIONS.values() for name, (module, _) in commands.items()}


class LazyGroup(click.Group):
    """Group that lists the names and summaries of all commands, and imports a command on first use."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for commands in _SECTIONS.values():
            for name, (_, summary) in commands.items():
                self.add_command(click.Command(name, help=summary))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Import the command that the arguments name. For an unknown name, the error suggests similar commands."""
        similar = get_close_matches(args[0], self.commands)
        if similar and args[0] not in self.commands and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {' or '.join(map(repr, similar))}?")
        name, _, rest = super().resolve_command(ctx, args)
        command = None if name is None else load_command(name)
        end_start()
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section."""
        del ctx
        write_sections(
            formatter,
            {
                title: [(name, summary) for name, (_, summary) in commands.items()]
                for title, commands in _SECTIONS.items()
            },
        )


def load_command(name: str) -> click.Command:
    """Import the module of a command and return the command."""
    from cablestore.cli.options import strict  # noqa: PLC0415 - not needed for the help of `cablestore`

    commands = import_module(f"cablestore.cli.{_MODULE_OF[name]}").COMMANDS
    return strict(next(command for command in commands if command.name == name))


def load_all() -> dict[str, click.Command]:
    """Import the modules of all commands and return the commands by name."""
    return {name: load_command(name) for name in _MODULE_OF}
