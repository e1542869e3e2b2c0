"""Options of `serve` for the inspection page, and the server of the page."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from cablestore.aio import AsyncCableStore
from cablestore.cli import values
from cablestore.cli.options import all_of
from cablestore.cli.output import Output
from cablestore.cli.serve_options import AddressType
from cablestore.extras import naming_extras
from cablestore.inspect.settings import InspectSettings
from cablestore.remote.node import WatchedNode
from cablestore.store.store import CableStore

if TYPE_CHECKING:
    from cablestore.inspect.server import InspectServer

_LOG: Final = logging.getLogger("cablestore.node")

inspect_options = all_of(
    click.option(
        "--inspect",
        type=AddressType(),
        metavar="HOST:PORT",
        help="Show the store on a web page at this address, and print the link with its token [default: off].",
    ),
    click.option(
        "--inspect-token",
        type=values.token,
        metavar="@FILE|TEXT",
        help="Token of the page, at least 16 characters [default: random].",
    ),
    click.option(
        "--inspect-behind-proxy",
        type=values.host_name,
        metavar="NAME",
        help="Host name under which a TLS proxy publishes the page. Required with a token for other machines.",
    ),
    click.option("--inspect-public", is_flag=True, help="Leave out local and private data on the page."),
)
"""Options of `serve` for the page."""


def inspect_settings_of(chosen: dict[str, Any]) -> InspectSettings | None:
    """Return the settings of the page, or None without --inspect. Raises ArgumentError if they are invalid."""
    address = chosen.get("inspect")
    if address is None:
        return None
    token, name = chosen["inspect_token"] or "", chosen["inspect_behind_proxy"]
    return InspectSettings(address, token, name, is_public=chosen["inspect_public"])


def inspect_server(store: AsyncCableStore, settings: InspectSettings, node: WatchedNode | None) -> InspectServer:
    """Return the server of the page. Raises MissingExtraError without the extra `inspect`."""
    with naming_extras("the page of a store needs", extra="inspect"):
        from cablestore.inspect.server import InspectServer  # noqa: PLC0415 - needs aiohttp and Jinja2
    return InspectServer(store, settings, node)


@asynccontextmanager
async def shown_beside(
    store: CableStore, node: WatchedNode, settings: InspectSettings, out: Output
) -> AsyncIterator[None]:
    """Serve the page of a running node during the body. Print its link, and log its address."""
    wrapped = AsyncCableStore(store)
    try:
        async with inspect_server(wrapped, settings, node) as server:
            out.say(f"inspect at {server.link}", inspect=server.link)
            _LOG.info("inspect", extra={"address": str(server.address)})
            yield
    finally:
        wrapped.detach()
