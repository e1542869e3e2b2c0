"""Commands of content stores: archive content, archive content delete."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import click

from cablestore.archive.content.store import DEFAULT_QUOTA_SIZE_BYTES, ContentStore
from cablestore.archive.format.announcement import CODEX
from cablestore.archive.format.cid import Cid
from cablestore.cli.archive_options import address, content_place_options, require_one_place, writable
from cablestore.cli.options import json_option
from cablestore.cli.output import Output, size
from cablestore.cli.service import StopSignals, run_on_loop
from cablestore.cli.values import PathValue
from cablestore.errors import ArchiveError


@click.command()
@click.argument("folder", metavar="DIR", type=PathValue(is_folder=True))
@click.option(
    "--listen", default="127.0.0.1:8080", show_default=True, metavar="HOST:PORT", help="Address of the REST API."
)
@click.option(
    "--upstream",
    multiple=True,
    metavar="URL",
    help="Node from which to fetch datasets that this content store lacks; repeatable.",
)
@click.option(
    "--quota", type=click.IntRange(1), metavar="BYTES", help="Maximum size of the content store [default: 21474836480]."
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME[:PORT]",
    help="Further host name to accept in the Host header; repeatable. The server answers other names with status 403.",
)
@json_option
def content(
    folder: Path, listen: str, upstream: tuple[str, ...], quota: int | None, names: tuple[str, ...], as_json: bool
) -> int:
    """Serve a content store over Codex's REST API, /api/codex/v1, until SIGTERM or Ctrl-C.

    DIR is created if it does not exist. The API does not ask for a password: every client that can connect can read,
    upload and delete datasets.

    Example: `cablestore archive content content-store --listen 127.0.0.1:8080`
    """
    out = Output(as_json=as_json)
    host, port = address(listen)
    with ContentStore.open(writable(folder), quota_size_bytes=quota or DEFAULT_QUOTA_SIZE_BYTES) as store:
        for cid in sorted(store.damaged):
            out.note(f"manifest {cid} is damaged. Upload its dataset again, or delete it")
        for cid in store.incomplete():
            out.note(f"files of dataset {cid} are damaged. Upload the dataset again, or delete it")

        async def serve(signals: StopSignals) -> None:
            received = signals.catch_on_loop()
            from cablestore.archive.content.server import ContentServer  # noqa: PLC0415 - needs aiohttp

            async with ContentServer(store, host=host, port=port, upstream=upstream, names=names) as server:
                out.say(f"serving {folder} on {server.url}", url=server.url)
                await received

        with StopSignals() as signals:
            run_on_loop(partial(serve, signals))
        return signals.status


@click.command("content delete")
@click.argument("content_id", metavar="CONTENT-ID")
@content_place_options("Folder of a content store that no other process has open.")
@json_option
def delete(content_id: str, node: str | None, content_folder: Path | None, as_json: bool) -> None:
    """Delete a dataset from a content store. Exit status 2 if the store does not contain it.

    CONTENT-ID is the id of an archive or an index, with or without codex:. Other nodes that have the dataset keep it.

    Example: `cablestore archive content delete CONTENT-ID --content-folder DIR`
    """
    out = Output(as_json=as_json)
    require_one_place(node, content_folder, "delete")
    cid = Cid.parse(content_id.removeprefix(CODEX))
    if node is not None:
        freed_size_bytes = run_on_loop(lambda: _delete_on_node(node, cid))
    elif content_folder is not None:
        freed_size_bytes = _delete_here(content_folder, cid)
    out.say(
        f"deleted {cid}, freed {size(freed_size_bytes)}",
        content_id=str(cid),
        freed_size_bytes=freed_size_bytes,
    )


def _delete_here(folder: Path, cid: Cid) -> int:
    """Delete a dataset from a closed store. Return the freed space in bytes."""
    if not folder.is_dir():
        raise ArchiveError(f"no content store found at {folder}. Check the path")
    with ContentStore.open(folder) as store:
        before = store.space().used_size_bytes
        if not store.delete(cid):
            raise ArchiveError(f"dataset not found: {cid} is not in the content store at {folder}")
        return before - store.space().used_size_bytes


async def _delete_on_node(url: str, cid: Cid) -> int:
    """Delete a dataset from a node. Return the freed space in bytes."""
    from cablestore.archive.content.client import ContentClient  # noqa: PLC0415 - needs aiohttp

    async with ContentClient(url) as client:
        is_there = await client.exists(cid)
        before = await client.space()
        await client.delete(cid)
        freed_size_bytes = before.used_size_bytes - (await client.space()).used_size_bytes
    if not is_there and freed_size_bytes <= 0:
        raise ArchiveError(f"dataset not found: {cid} is not on {url}")
    return max(freed_size_bytes, 0)


COMMANDS: Final = (content, delete)
