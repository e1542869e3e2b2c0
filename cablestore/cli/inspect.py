"""The command `inspect`: a web page that shows a store."""

from __future__ import annotations

import tempfile
import webbrowser
from contextlib import ExitStack
from html import escape
from pathlib import Path
from typing import Final

import click

from cablestore.aio import AsyncCableStore
from cablestore.cli import values
from cablestore.cli.inspect_options import inspect_server
from cablestore.cli.options import reading_options
from cablestore.cli.output import Output
from cablestore.cli.serve_options import AddressType
from cablestore.cli.service import StopSignals, run_on_loop
from cablestore.cli.stores import node_of, offered, open_or_connect
from cablestore.cli.values import PathValue
from cablestore.inspect.settings import InspectSettings
from cablestore.peers import Address
from cablestore.remote.node import WatchedNode
from cablestore.store.store import CableStore

_PAGE: Final = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={link}">'


@click.command(context_settings={"auto_envvar_prefix": "CABLESTORE_INSPECT"})
@click.argument("folder", metavar="[STORE]", type=PathValue(), required=False)
@click.option(
    "--listen",
    type=AddressType(),
    metavar="HOST:PORT",
    default="127.0.0.1:8573",
    show_default=True,
    help="Address of the page. Port 0 means any free port.",
)
@click.option(
    "--token",
    type=values.token,
    metavar="@FILE|TEXT",
    help="Token of the page, at least 16 characters [default: random].",
)
@click.option(
    "--behind-proxy",
    type=values.host_name,
    metavar="NAME",
    help="Host name under which a TLS proxy publishes the page. Required with --token to listen beyond this machine.",
)
@click.option("--public", "is_public", is_flag=True, help="Leave out local and private data.")
@click.option("--archives", type=PathValue(), metavar="FOLDER", help="Folder with history archives to show.")
@click.option("--open/--no-open", "opens", default=True, help="Open the page in the browser [default: on a terminal].")
@reading_options
def inspect(
    path: Path,
    out: Output,
    folder: Path | None,
    read_only: bool,
    listen: Address,
    token: str | None,
    behind_proxy: str | None,
    is_public: bool,
    archives: Path | None,
    opens: bool,
) -> int:
    """Show a store in the browser, until Ctrl-C.

    The page shows channels, posts, users, roles, rows of the database, the arrival log and peers, and updates itself.
    The command does not change the store. Other commands can use the store at the same time. If `serve` has the store
    open, the page also shows its peers. Add `?format=json` to an address for JSON.

    Example: `cablestore inspect`
    """
    settings = InspectSettings(listen, token or "", behind_proxy, is_public=is_public, archives=archives)
    with ExitStack() as stack:
        store = stack.enter_context(open_or_connect(folder or path, read_only=read_only))
        node = node_of(store)
        if type(store) is CableStore and not store.is_read_only:  # type checkers also see a RemoteStore as a CableStore
            stack.enter_context(offered(store, "inspect", WatchedNode()))
        signals = stack.enter_context(StopSignals())
        run_on_loop(lambda: _show(store, settings, node, out, signals, opens=opens))
    return signals.status


async def _show(
    store: CableStore,
    settings: InspectSettings,
    node: WatchedNode | None,
    out: Output,
    signals: StopSignals,
    *,
    opens: bool,
) -> None:
    received = signals.catch_on_loop()
    wrapped = AsyncCableStore(store)
    try:
        async with inspect_server(wrapped, settings, node) as server:
            out.say(f"inspect at {server.link}", inspect=server.link)
            with tempfile.TemporaryDirectory(prefix="cablestore-inspect-") as private:
                if opens and out.draws:
                    _open_in_browser(server.link, Path(private))
                await received
    finally:
        wrapped.detach()


def _open_in_browser(link: str, private: Path) -> None:
    """Open a link in the browser through a file that only this user can read.

    The link contains the token, and other users of the machine can see the command line of the browser.
    """
    page = private / "open.html"
    page.write_text(_PAGE.format(link=escape(link)), encoding="utf-8")
    webbrowser.open(page.as_uri())


COMMANDS: Final = (inspect,)
