"""Commands that make history archives available: archive publish, announce."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click

from cablestore.archive import member
from cablestore.archive.content.store import ContentStore
from cablestore.archive.folder import ArchiveFolder
from cablestore.archive.format.announcement import link_text, parse_link
from cablestore.cli.archive_options import (
    cabal_key_option,
    content_place_options,
    folder_argument,
    key_of,
    left_out_note,
    require_one_place,
    writable,
)
from cablestore.cli.options import with_store
from cablestore.cli.output import Output, size
from cablestore.cli.stores import identity_of
from cablestore.plurals import counted
from cablestore.store.store import CableStore, own_key


@click.command()
@folder_argument
@content_place_options("Folder of a content store that no other process has open; created if it does not exist.")
@cabal_key_option
@with_store
def publish(
    store: CableStore, out: Output, folder: Path, node: str | None, content_folder: Path | None, cabal_key: str | None
) -> None:
    """Publish the archives below FOLDER by content id, and print the link, codex:CONTENT-ID.

    Run the command each week to publish new archives. It does not upload published archives again.

    Example: `cablestore archive publish archives --node http://127.0.0.1:8080`
    """
    from cablestore.archive.publish import NodeTarget, Publisher, Target  # noqa: PLC0415 - needs aiohttp

    require_one_place(node, content_folder, "publish")
    identity = identity_of(store)
    files = ArchiveFolder(folder / identity.public_key.hex())
    publisher = Publisher(identity, store.dialect, key_of(cabal_key))
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
    out.note(f"uploaded {published.sent:,} of {counted(published.archives, 'archive')}, {size(published.sent_bytes)}")


@click.command()
@click.argument("link")
@with_store
def announce(store: CableStore, out: Output, link: str) -> None:
    """Announce a link to the archives to all members, as the control node. LINK is a magnet link or codex:CONTENT-ID.

    The command writes nothing if the newest announcement has the same link.

    Example: `cablestore archive announce codex:CONTENT-ID`
    """
    announced = announce_new(store, link)
    if announced is None:
        out.say("already announced", hash=None)
    else:
        out.say(f"announced in post {announced.hex()}", hash=announced.hex())


def announce_new(store: CableStore, link: str) -> bytes | None:
    """Announce a link. Return the hash of the post, or None if the newest announcement has the same link."""
    newest, wanted = member.newest_announcement(store, own_key(store)), parse_link(link)
    return None if newest is not None and newest[1].link == wanted else member.announce(store, wanted)


COMMANDS: Final = (publish, announce)
