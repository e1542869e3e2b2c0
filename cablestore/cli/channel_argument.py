"""The argument CHANNEL, with shell completion."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem

from cablestore.cli.options import default_store
from cablestore.cli.stores import open_or_connect
from cablestore.errors import CableStoreError
from cablestore.store.lookup import typed_channel
from cablestore.store.naming import folded

_ONE_WORD: Final = re.compile(r"[\w.,:@%+=/-]+")
"""Names that do not need quotes in a shell."""


def complete_channel(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the channels of the store whose names begin with a typed word, for shell completion.

    Names that a shell would split are left out. The list is empty if the store cannot be read.
    """
    del param
    try:
        with open_or_connect(Path(ctx.params.get("path") or default_store())) as store:
            names = [channel.name for channel in store.channels()]
    except (CableStoreError, OSError):
        return []
    begun = folded(typed_channel(incomplete))
    return [CompletionItem(name) for name in names if folded(name).startswith(begun) and _ONE_WORD.fullmatch(name)]


channel_argument = click.argument("channel", shell_complete=complete_channel)
