"""Commands that make history archives available: archive publish, content, announce."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click

from cablestore.archive import member
from cablestore.archive.content.store import DEFAULT_QUOTA_SIZE_BYTES, ContentStore
from cablestore.archive.folder import ArchiveFolder
from cablestore.archive.format.announcement import link_text, parse_link
from cablestore.cli.archive_options import (
    address,
    cabal_key_option,
    folder_argument,
    key_of,
    left_out_note,
    writable,
)
from cablestore.cli.options import json_option, on_mount, with_store
from cablestore.cli.output import Output, size
from cablestore.cli.remote import offered_command
from cablestore.cli.service import StopSignal, run_on_loop
from cablestore.store.store import CableStore


@offered_command
@folder_argument
@click.option("--node", metavar="URL", help="A node with Codex' REST API, as in http://127.0.0.1:8080.")
@click.option(
    "--content-folder",
    type=click.Path(file_okay=False, path_type=Path, resolve_path=True),
    help="A content store that no other process has open; created if it does not exist.",
)
@cabal_key_option
@with_store
def publish(
    store: CableStore, out: Output, folder: Path, node: str | None, content_folder: Path | None, cabal_key: str | None
) -> None:
    """Publish the archives below FOLDER by content id, and print the link, codex:CONTENT-ID.

    Run it again each week: published archives are not sent again.
    """
    from cablestore.archive.publish import NodeTarget, Publisher, Target  # noqa: PLC0415 - needs aiohttp

    if (node is None) == (content_folder is None):
        raise click.UsageError("say where to publish: either --node URL or --content-folder DIR")
    files = ArchiveFolder(folder / store.identity.public_key.hex())
    publisher = Publisher(store.identity, store.dialect, key_of(cabal_key))
    with ExitStack() as stack:
        target: Target
        if content_folder is not None:
            target = stack.enter_context(ContentStore.open(writable(content_folder)))
        elif node is not None:
            target = stack.enter_context(NodeTarget(node))
        published = publisher.publish(files, target, stack.enter_context(out.progress("publishing", None)))
    link = link_text(published.index_cid)
    out.say(
        link,
        link=link,
        archives=published.archives,
        sent=published.sent,
        sent_bytes=published.sent_bytes,
        deletions_left_out=[digest.hex() for digest in published.deletions_left_out],
    )
    if published.deletions_left_out:
        out.note(left_out_note(published.deletions_left_out))
    out.note(f"{published.sent:,} of {published.archives:,} archives were new there, {size(published.sent_bytes)} sent")


@on_mount("folder")
@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path, resolve_path=True))
@click.option(
    "--listen", default="127.0.0.1:8080", show_default=True, metavar="HOST:PORT", help="Address of the REST API."
)
@click.option(
    "--upstream", multiple=True, metavar="URL", help="Node to ask for content that is not stored here; repeatable."
)
@click.option(
    "--quota", type=click.IntRange(1), metavar="BYTES", help="Maximum size of the content store [default: 21474836480]."
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME[:PORT]",
    help="Another name of this server, as clients send it in the Host header; repeatable. Other names get 403.",
)
@json_option
def content(
    folder: Path, listen: str, upstream: tuple[str, ...], quota: int | None, names: tuple[str, ...], as_json: bool
) -> int:
    """Serve a content store over Codex' REST API /api/codex/v1 until SIGTERM or Ctrl-C.

    DIR is created if it does not exist. There is no password: every client that can connect can read, put and delete.
    """
    out = Output(as_json=as_json)
    host, port = address(listen)
    with ContentStore.open(writable(folder), quota_size_bytes=quota or DEFAULT_QUOTA_SIZE_BYTES) as store:
        for cid in sorted(store.damaged):
            out.note(f"the manifest {cid} is damaged: put its dataset again, or delete it")

        async def serve() -> int:
            from cablestore.archive.content.server import ContentServer  # noqa: PLC0415 - needs aiohttp

            async with ContentServer(store, host=host, port=port, upstream=upstream, names=names) as server:
                stop = StopSignal()
                out.say(f"serving {folder} on {server.url}", url=server.url)
                return (await stop.wait())[1]

        return run_on_loop(serve)


@offered_command
@click.argument("link")
@with_store
def announce(store: CableStore, out: Output, link: str) -> None:
    """Announce to the members where the archives are, as the control node. LINK is a magnet link or codex:CONTENT-ID.

    If the newest announcement has the same link, nothing is posted.
    """
    newest = member.newest_announcement(store, store.identity.public_key)
    wanted = parse_link(link)
    if newest is not None and newest[1].link == wanted:
        out.say("already announced", hash=None)
        return
    digest = member.announce(store, wanted)
    out.say(f"announced by post {digest.hex()}", hash=digest.hex())


COMMANDS: Final = (publish, content, announce)
