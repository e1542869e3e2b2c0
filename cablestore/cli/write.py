"""Commands that write: init, identity, keygen, post, topic, join, leave, name, delete."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Final

import click

from cablestore import limits
from cablestore.cli.channel_argument import channel_argument
from cablestore.cli.dates import note_date
from cablestore.cli.options import (
    common_options,
    full_hash,
    json_option,
    on_mount,
    stored_channel,
    with_store,
    with_store_to_read,
)
from cablestore.cli.output import Output, safe
from cablestore.cli.stores import identity_of, open_store
from cablestore.cli.values import PathValue
from cablestore.errors import CorruptStoreError
from cablestore.protocol.body import INFO, Text, Topic
from cablestore.protocol.crypto import KEY_SIZE_BYTES, Identity
from cablestore.protocol.dialect import DIALECTS, dialect_named
from cablestore.protocol.post import Post
from cablestore.scripts import is_invisible
from cablestore.store.key_file import load_identity, save_identity, save_secret
from cablestore.store.lookup import typed_name
from cablestore.store.store import CableStore, own_key


def _or_standard_input(ctx: click.Context, _: click.Parameter, text: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words, or the text on standard input, which is read before the store is opened."""
    if ctx.resilient_parsing or " ".join(text):  # shell completion does not run the command
        return text
    if sys.stdin is None:
        raise click.UsageError("missing text: standard input is closed. Pass TEXT as an argument")
    try:
        found = sys.stdin.read()
    except OSError as error:
        raise click.UsageError(f"cannot read the text on standard input: {error.strerror}") from None
    except UnicodeDecodeError as error:
        encoding = error.encoding.upper()
        raise click.UsageError(f"the text on standard input is not valid {encoding}. Convert it first") from None
    return (found.removeprefix("\ufeff").replace("\r\n", "\n").rstrip("\n"),)


def _print(out: Output, post: Post, text: str) -> None:
    out.say(
        f"{text} ({post.hash.hex()[:12]})", hash=post.hash.hex(), type=post.type_name, timestamp_ms=post.timestamp_ms
    )


def _print_written(store: CableStore, out: Output, post: Post, text: str) -> None:
    _print(out, post, text)
    note_date(store, out, post)


def _write(store: CableStore, out: Output, body: Text | Topic, done: str) -> None:
    """Write to a channel, and print a note if the write joined it."""
    was_member = _is_member(store, body.channel)
    post = store.write(body)
    if not was_member:
        out.note(f"joined {safe(body.channel)}")
    _print_written(store, out, post, done)


def _is_member(store: CableStore, channel: str) -> bool:
    """Return True if the store's user is in a channel."""
    return store.public_key is not None and store.user(store.public_key, channel).is_member


def _own_info(store: CableStore) -> Post:
    """Return the post/info that sets the user's name."""
    found = store.posts_by(own_key(store), post_type=INFO)
    post = max(found, key=lambda each: (each.timestamp_ms, each.hash), default=None)
    if post is None:
        raise CorruptStoreError("the post with your name is missing. Run `cablestore check`")
    return post


@on_mount("path")
@click.command()
@click.option(
    "--dialect", type=click.Choice(list(DIALECTS)), default="legacy", show_default=True, help="Dialect of the posts."
)
@click.option("--import-key", type=PathValue(), help="Use the identity in this key file.")
@common_options
def init(path: Path, out: Output, dialect: str, import_key: Path | None) -> None:
    """Create a new store, or show an existing store.

    Example: `cablestore init -s my-store`
    """
    imported = load_identity(import_key) if import_key is not None else None
    with open_store(path, dialect=dialect_named(dialect)) as store:
        if imported is not None:
            store.import_identity(imported)
        public_key = store.identity.public_key.hex()
        out.say(
            f"store {path}, dialect {store.dialect.name}, public key {public_key}",
            store=str(path),
            public_key=public_key,
        )


@click.command()
@click.option(
    "--export",
    "target",
    type=PathValue(),
    help="Write the secret key to this new file with mode 0600.",
)
@with_store_to_read
def identity(store: CableStore, out: Output, target: Path | None) -> None:
    """Show your public key and name, or export the secret key.

    Example: `cablestore identity --export identity-copy`
    """
    public_key = own_key(store)
    if target is not None:
        save_identity(identity_of(store), target)
        out.note(f"the secret key is in {target}: anyone who has it can write as you")
    name = store.user(public_key).name
    out.say(f"{public_key.hex()}  {safe(name)}", public_key=public_key.hex(), name=name)


@click.command()
@click.argument("target", metavar="FILE", type=PathValue(allow_dash=True))
@click.option("--cabal", "is_cabal_key", is_flag=True, help="Create a cabal key instead, which all members share.")
@json_option
def keygen(target: Path, is_cabal_key: bool, as_json: bool) -> None:
    """Write a new secret key to a file.

    FILE must not exist, and is created with mode 0600. With -, the key is printed. `cablestore init --import-key FILE`
    creates a store that uses it. `serve`, `chat` and `sync` accept a cabal key with --cabal-key @FILE.

    Example: `cablestore keygen key-file`
    """
    out = Output(as_json=as_json)
    if is_cabal_key:
        _new_cabal_key(out, target)
        return
    made = Identity.generate()
    public_key = made.public_key.hex()
    if str(target) == "-":
        out.say(made.seed.hex(), secret_key=made.seed.hex(), public_key=public_key)
        out.note(f"the public key is {public_key}")
    else:
        save_identity(made, target)
        out.say(f"{public_key}  {target}", public_key=public_key, path=str(target))
        out.note(f"the secret key is in {target}: anyone who has it can write as you")


def _new_cabal_key(out: Output, target: Path) -> None:
    key = secrets.token_bytes(KEY_SIZE_BYTES)
    if str(target) == "-":
        out.say(key.hex(), cabal_key=key.hex())
        out.note("this is a cabal key: anyone who has it can join the cabal")
    else:
        save_secret(key, target, "cabal key")
        out.say(f"cabal key  {target}", path=str(target))
        out.note(f"the cabal key is in {target}: anyone who has it can join the cabal")


@click.command()
@channel_argument
@click.argument("text", nargs=-1, callback=_or_standard_input)
@with_store
def post(store: CableStore, out: Output, channel: str, text: tuple[str, ...]) -> None:
    """Post TEXT, or the text on standard input, to CHANNEL. Joins the channel first if you are not in it.

    Example: `cablestore post garden 'the tomatoes are red'`
    """
    said = " ".join(text)
    if is_invisible(said):
        raise click.UsageError("empty message: nothing was posted. Pass TEXT as an argument or on standard input")
    _write(store, out, Text(stored_channel(store, channel), said), "posted")


@click.command()
@channel_argument
@click.argument("text", nargs=-1)
@with_store
def topic(store: CableStore, out: Output, channel: str, text: tuple[str, ...]) -> None:
    """Set the topic of CHANNEL to TEXT.

    Without TEXT, prints the topic. An empty TEXT clears the topic. Joins the channel first if you are not in it.
    Example: `cablestore topic garden 'fruit and vegetables'`
    """
    channel, topic = stored_channel(store, channel), " ".join(text)
    before = store.topic(channel)
    if not text:
        if not before:
            out.note(f"{safe(channel)} has no topic")
        if before or out.as_json:
            out.say(safe(before), channel=channel, topic=before)
    elif before == topic:
        has = "already has this topic" if topic else "has no topic"
        out.note(f"{safe(channel)} {has}: nothing was written")
    else:
        _write(store, out, Topic(channel, topic), "topic set" if topic else "topic cleared")


@click.command()
@channel_argument
@with_store
def join(store: CableStore, out: Output, channel: str) -> None:
    """Join CHANNEL.

    Example: `cablestore join garden`
    """
    channel = stored_channel(store, channel)
    if _is_member(store, channel):
        out.note(f"you are already in {safe(channel)}: nothing was written")
    else:
        _print_written(store, out, store.join(channel), f"joined {safe(channel)}")


@click.command()
@channel_argument
@with_store
def leave(store: CableStore, out: Output, channel: str) -> None:
    """Leave CHANNEL. You must be in it.

    Example: `cablestore leave garden`
    """
    channel = stored_channel(store, channel)
    _print_written(store, out, store.leave(channel), f"left {safe(channel)}")


@click.command()
@click.argument("name")
@with_store
def name(store: CableStore, out: Output, name: str) -> None:
    """Change your name to NAME.

    Example: `cablestore name ann`
    """
    name = typed_name(name)
    if not name:  # the store would remove the name
        raise click.UsageError(f"invalid user name: expected 1 to {limits.MAX_USER_NAME_CODEPOINTS} code points, got 0")
    post = store.set_name(name)
    if post is None:
        _print(out, _own_info(store), f"your name is already {safe(name)}")
    else:
        _print_written(store, out, post, f"your name is now {safe(name)}")


@click.command()
@click.argument("hashes", nargs=-1, required=True)
@click.option(
    "--force", is_flag=True, help="Accept hashes of posts that are not stored, such as posts of another device."
)
@with_store
def delete(store: CableStore, out: Output, hashes: tuple[str, ...], force: bool) -> None:
    """Delete posts of your own. HASHES are the 64 hex digits of the posts, or at least the first 4.

    If a hash is unknown, the command fails and does not delete any post.

    Example: `cablestore delete 5ab64a0c`
    """
    targets = [full_hash(store, text) for text in hashes]
    deleted = [target for target in targets if _is_deleted(store, target)]
    for target in dict.fromkeys(deleted):
        out.note(f"the post {target.hex()[:12]} is already deleted: nothing was written")
    for deletion in store.delete([target for target in targets if target not in deleted], force=force):
        _print(out, deletion, "deleted")


def _is_deleted(store: CableStore, target: bytes) -> bool:
    """Return True if the user has already deleted a post."""
    stone = store.deletion(target)
    return stone is not None and stone.is_effective and stone.author == store.public_key


COMMANDS: Final = (init, identity, keygen, post, topic, join, leave, name, delete)
