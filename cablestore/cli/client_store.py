"""Store of a client. The client opens and serves the store, or connects to the process that serves it.

If that process was another client and has exited, this client opens the store itself. If it was `serve` or another
program, this client waits until that program serves the store again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Final, NamedTuple

import click

from cablestore.chat.cabal import Cabal
from cablestore.chat.hosting import HostedNode, Hosting
from cablestore.chat.keeper import OpenStore
from cablestore.cli.output import safe
from cablestore.cli.serve import join_with_seed
from cablestore.cli.stores import offered, open_store, open_upgraded
from cablestore.errors import CableStoreError, OwnerGoneError, StoreLockedError
from cablestore.remote import connect
from cablestore.remote.methods import load_functions
from cablestore.store.store import CableStore

CLIENT: Final = "chat"
"""Name of a client as the owner of a store."""
_BEGIN_WAIT_S: Final = 5.0
"""Time to wait until the process that has the store open serves it: another client may just have opened it."""
_POLL_EVERY_S: Final = 0.1
_ANSWER_WAIT_S: Final = 5.0
"""Time after which the client reports that the process that has the store open does not answer."""


class CabalChoice(NamedTuple):
    """Store to show. `hosting` contains the settings of its node, or is None without a node."""

    path: Path
    hosting: Hosting | None
    seed: str | None
    node_options: tuple[str, ...]
    """Options of a node on the command line."""


def open_cabal(stack: ExitStack, choice: CabalChoice) -> Cabal:
    """Open a store, or connect to the process that has it open. The stack closes it."""
    source = _StoreSource(choice)
    opened = source.open()
    stack.callback(opened.closing.close)
    cabal = Cabal(opened, choice.path.resolve().name, source.open_again)
    stack.callback(_end, cabal, choice.path.absolute())
    return cabal


class _StoreSource:
    """Source of a client's store.

    It opens the store in this process, or connects to the process that has the store open.
    """

    def __init__(self, choice: CabalChoice) -> None:
        self._choice = choice
        self._owner = ""
        """Last owner of the store: `serve`, `chat`, or "" for another program."""

    def open(self) -> OpenStore:
        """Open the store, or connect to the process that has it open. Raises StoreLockedError if both fail."""
        until_s = time.monotonic() + _BEGIN_WAIT_S
        while True:
            try:
                return self._open_here(open_upgraded)
            except StoreLockedError as locked:
                try:
                    return self._allowed(self._reach())
                except OwnerGoneError:
                    if time.monotonic() > until_s:
                        raise locked from None
            time.sleep(_POLL_EVERY_S)

    def open_again(self) -> OpenStore:
        """Connect to the process that has the store open, or open the store if the last owner was a client.

        Raises OwnerGoneError if no process serves the store and this client may not open it.
        """
        try:
            return self._reach()
        except OwnerGoneError:
            if self._owner != CLIENT:
                raise
        try:
            return self._open_here(lambda path: open_store(path, create=False))
        except StoreLockedError as error:  # another client opened it first
            raise OwnerGoneError(str(error)) from None

    def _reach(self) -> OpenStore:
        store = connect(self._choice.path, timeout_s=_ANSWER_WAIT_S)
        self._owner = store.owner
        return OpenStore.there(store)

    def _allowed(self, opened: OpenStore) -> OpenStore:
        """Return `opened`. Raises UsageError for node options that have no effect on the process that has the store open.

        Other programs have a separate node. A client that started without a node cannot start one later.
        """
        path, options = self._choice.path, self._choice.node_options
        if options and (self._owner != CLIENT or opened.node.state is None):
            opened.closing.close()
            owner = f"`{self._owner}`" if self._owner else "another program"
            raise click.UsageError(
                f"{owner} has the store at {path} open and manages its connections. Remove {', '.join(options)}, or "
                f"stop {owner} first"
            )
        return opened

    def _open_here(self, opening: Callable[[Path], CableStore]) -> OpenStore:
        """Open the store, start its node, and serve it. Raises StoreLockedError if another process has it open."""
        choice = self._choice
        with ExitStack() as unusable:
            store = unusable.enter_context(opening(choice.path))
            if choice.seed is not None:
                join_with_seed(store, choice.seed)
            node = None if choice.hosting is None else HostedNode(store, choice.hosting)
            opened = OpenStore.here(store, node)
            unusable.callback(opened.closing.close)
            opened.closing.enter_context(offered(store, CLIENT, opened.node))
            Thread(target=load_functions, name="chat-load", daemon=True).start()  # does not delay the first screen
            unusable.pop_all()
        return opened


def _end(cabal: Cabal, path: Path) -> None:
    """Close a cabal. Write unsent drafts to the store, or print them if that fails."""
    cabal.close()
    drafts = cabal.unsent_drafts
    if not drafts:
        return
    try:
        with open_store(path, create=False) as store:
            for channel, text in drafts.items():
                store.local.set_draft(channel, text)
    except CableStoreError as error:
        click.echo(f"cablestore: cannot save unsent drafts: {error}", err=True)
        for channel, text in drafts.items():
            click.echo(f"  #{safe(channel)}: {safe(text)}", err=True)
