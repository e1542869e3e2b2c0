"""The store of a client: open in this process, which then serves other processes, or in another one that serves it.

A client that another client served opens the store itself when that one ends. One that `serve` or another program served
waits for it.
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
"""What a client is called as the owner of a store."""
_BEGIN_WAIT_S: Final = 5.0
"""How long a process that has a store open may take until it serves others: two clients may start at once."""
_LOOK_EVERY_S: Final = 0.1
_ANSWER_WAIT_S: Final = 5.0
"""How long that process may be silent before the client says so."""


class CabalChoice(NamedTuple):
    """A store to show, and how its node is run; None without one."""

    path: Path
    hosting: Hosting | None
    seed: str | None
    node_options: tuple[str, ...]
    """Options of a node that were given."""


def open_cabal(stack: ExitStack, choice: CabalChoice) -> Cabal:
    """Open a store, or reach the process that has it open. It is closed with the stack."""
    source = _StoreSource(choice)
    opened = source.open()
    stack.callback(opened.closing.close)
    cabal = Cabal(opened, choice.path.resolve().name, source.open_again)
    stack.callback(_end, cabal, choice.path.absolute())
    return cabal


class _StoreSource:
    """The store of a client: opened here, or in the process that has it open."""

    def __init__(self, choice: CabalChoice) -> None:
        self._choice = choice
        self._owner = ""
        """What had the store open last: `serve`, `chat`, or "" for another program."""

    def open(self) -> OpenStore:
        """Open the store, or reach the process that has it open. Raises StoreLockedError if that serves nobody."""
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
            time.sleep(_LOOK_EVERY_S)

    def open_again(self) -> OpenStore:
        """Reach the process that has the store open. Once that was a client and ended, open the store here.

        Raises OwnerGoneError if no other process has it open and this client may not open it.
        """
        try:
            return self._reach()
        except OwnerGoneError:
            if self._owner != CLIENT:
                raise
        try:
            return self._open_here(lambda path: open_store(path, create=False))
        except StoreLockedError as error:  # another client was faster
            raise OwnerGoneError(str(error)) from None

    def _reach(self) -> OpenStore:
        store = connect(self._choice.path, timeout_s=_ANSWER_WAIT_S)
        self._owner = store.owner
        return OpenStore.there(store)

    def _allowed(self, opened: OpenStore) -> OpenStore:
        """Refuse options of a node that would do nothing: `serve` has one, and a client without one keeps none."""
        path, options = self._choice.path, self._choice.node_options
        if options and (self._owner != CLIENT or opened.node.state is None):
            opened.closing.close()
            owner = f"`{self._owner}`" if self._owner else "another program"
            raise click.UsageError(
                f"{owner} has the store at {path} open, and peers are connected to it. Leave out "
                f"{', '.join(options)}, or end {owner} first"
            )
        return opened

    def _open_here(self, opening: Callable[[Path], CableStore]) -> OpenStore:
        """Open the store, start its node, and serve other processes. Raises StoreLockedError if another one has it."""
        choice = self._choice
        with ExitStack() as unusable:
            store = unusable.enter_context(opening(choice.path))
            if choice.seed is not None:
                join_with_seed(store, choice.seed)
            node = None if choice.hosting is None else HostedNode(store, choice.hosting)
            opened = OpenStore.here(store, node)
            unusable.callback(opened.closing.close)
            opened.closing.enter_context(offered(store, CLIENT, opened.node))
            Thread(target=load_functions, name="chat-load", daemon=True).start()  # the first picture does not wait
            unusable.pop_all()
        return opened


def _end(cabal: Cabal, path: Path) -> None:
    """Close a cabal. Drafts that the process with the store did not get are put into the store, or shown."""
    cabal.close()
    drafts = cabal.unsent_drafts
    if not drafts:
        return
    try:
        with open_store(path, create=False) as store:
            for channel, text in drafts.items():
                store.local.set_draft(channel, text)
    except CableStoreError as error:
        click.echo(f"cablestore: what you began to write is not in the store: {error}", err=True)
        for channel, text in drafts.items():
            click.echo(f"  #{safe(channel)}: {safe(text)}", err=True)
