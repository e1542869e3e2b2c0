"""The store of a client: open in this process, which then serves other processes, or in another one that serves it.

A client that another client served opens the store itself when that one ends. One that `serve` served waits for it.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from cablestore.chat.hosting import HostedNode, Hosting
from cablestore.cli.connect import dialling
from cablestore.cli.invite import inviting
from cablestore.cli.output import safe
from cablestore.cli.remote import controlled, talk
from cablestore.cli.serve import join_with_seed
from cablestore.cli.stores import open_store, open_upgraded
from cablestore.errors import CableStoreError, OwnerGoneError, StoreLockedError
from cablestore.store.store import CableStore

if TYPE_CHECKING:
    from cablestore.chat.cabal import Cabal
    from cablestore.chat.remote_cabal import RemoteCabal
    from cablestore.chat.wire import StoreConnection

CLIENT: Final = "chat"
"""What a client is called as the owner of a store."""
_BEGIN_WAIT_S: Final = 5.0
"""How long a process that has a store open may take until it serves others: two clients may start at once."""
_LOOK_EVERY_S: Final = 0.1


class CabalChoice(NamedTuple):
    """A store to show, and how its node is run; None without one."""

    path: Path
    hosting: Hosting | None
    seed: str | None
    node_options: tuple[str, ...]
    """Options of a node that were given."""


def open_cabal(stack: ExitStack, choice: CabalChoice) -> Cabal:
    """Open a store, or reach the process that has it open. It is closed with the stack."""
    until_s = time.monotonic() + _BEGIN_WAIT_S
    while True:
        try:
            return _own_cabal(stack, choice)
        except StoreLockedError as locked:
            try:
                return _shared_cabal(stack, choice)
            except OwnerGoneError:
                if time.monotonic() > until_s:
                    raise locked from None
        time.sleep(_LOOK_EVERY_S)


def _own_cabal(stack: ExitStack, choice: CabalChoice) -> Cabal:
    from cablestore.chat.open_cabal import OpenCabal  # noqa: PLC0415 - other commands do not need it

    store = stack.enter_context(open_upgraded(choice.path))
    node = _started_node(store, choice)
    cabal = OpenCabal(store, _label(choice), node)
    stack.callback(cabal.close)
    _serve_others(stack, store, choice, node)
    return cabal


def _started_node(store: CableStore, choice: CabalChoice) -> HostedNode | None:
    if choice.seed is not None:
        join_with_seed(store, choice.seed)
    return None if choice.hosting is None else HostedNode(store, choice.hosting)


def _serve_others(stack: ExitStack, store: CableStore, choice: CabalChoice, node: HostedNode | None) -> None:
    """Run commands and serve clients in other processes until the stack is closed."""
    if node is not None and choice.hosting is not None:
        stack.enter_context(inviting(store, choice.hosting.settings.cabal_key, choice.hosting.connect))
        stack.enter_context(dialling(store, node.node, node.loop))
    stack.enter_context(
        controlled(store, choice.path, None if node is None else node.watched, CLIENT, loads_later=True)
    )


def _shared_cabal(stack: ExitStack, choice: CabalChoice) -> Cabal:
    """Reach the process that has a store open. Raises OwnerGoneError if it serves nobody."""
    from cablestore.chat.remote_cabal import RemoteCabal  # noqa: PLC0415 - other commands do not need it

    shared = _SharedStore(choice)
    remote = RemoteCabal(shared.connect, _label(choice))
    stack.callback(_end, remote, shared, choice.path.absolute())
    is_at_peers = shared.owner == CLIENT and remote.connection != "offline"
    if choice.node_options and not is_at_peers:
        raise click.UsageError(
            f"`{shared.owner}` has the store at {choice.path} open, and peers are connected to it. Leave out "
            f"{', '.join(choice.node_options)}, or end `{shared.owner}` first"
        )
    return remote


class _SharedStore:
    """Store that another process has open. Once that was a client and ended, it is opened here. `close` it at the end."""

    def __init__(self, choice: CabalChoice) -> None:
        self._choice = choice
        self._opened = ExitStack()
        self.owner = ""
        """What has the store open: `serve` or `chat`."""

    def connect(self) -> StoreConnection:
        """Connect to the process that has the store open. Raises OwnerGoneError if none has."""
        try:
            conversation = talk(self._choice.path.absolute())
        except OwnerGoneError:
            if self.owner != CLIENT:
                raise
            self._open()
            conversation = talk(self._choice.path.absolute())
        self.owner = conversation.owner
        return conversation

    def _open(self) -> None:
        self.close()
        try:
            with ExitStack() as stack:
                store = stack.enter_context(open_store(self._choice.path, create=False))
                node = _started_node(store, self._choice)
                if node is not None:
                    stack.callback(node.close)
                _serve_others(stack, store, self._choice, node)
                self._opened = stack.pop_all()
        except StoreLockedError as error:  # another client was faster
            raise OwnerGoneError(str(error)) from None

    def close(self) -> None:
        """Close the store if it was opened here."""
        self._opened.close()


def _label(choice: CabalChoice) -> str:
    return choice.path.resolve().name


def _end(remote: RemoteCabal, shared: _SharedStore, path: Path) -> None:
    """Close a cabal. Drafts that the process with the store did not get are put into the store, or shown."""
    remote.close()
    shared.close()
    drafts = remote.unsent_drafts
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
