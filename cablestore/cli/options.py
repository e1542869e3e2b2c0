"""Common options of commands, and opening the store that they select."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import click
from platformdirs import user_data_path

from cablestore import files, limits
from cablestore.cli.output import Output
from cablestore.cli.stores import open_or_connect
from cablestore.cli.values import Integer, PathValue, PlainText
from cablestore.protocol.keys import parse_hex
from cablestore.store.lookup import ambiguous, described, typed_channel, typed_key
from cablestore.store.store import CableStore


def all_of(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Combine several options into one decorator."""

    def add(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def default_store() -> Path:
    """Return the path of the store that commands use without --store."""
    try:
        return user_data_path("cablestore", appauthor=False) / "store"
    except RuntimeError:  # the user has no name, and HOME is not set
        return Path("~/.local/share/cablestore/store")  # the error on opening it says what to do


def store_option(meaning: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --store. The command gets `path`."""
    return click.option(
        "-s",
        "--store",
        "path",
        type=PathValue(),
        envvar="CABLESTORE_STORE",
        default=default_store,
        help=f"{meaning} [default: $CABLESTORE_STORE, or a folder in your user data].",
    )


def on_mount(target: str) -> Callable[[click.Command], click.Command]:
    """Add --require-mount to a command. `target` names the parameter with the folder to which the command writes.

    Apply this as the outermost decorator.
    """

    def add(command: click.Command) -> click.Command:
        run = command.callback
        assert run is not None  # noqa: S101 - all commands have a callback

        @wraps(run)
        def run_on_mount(*args: Any, require_mount: bool, **params: Any) -> Any:
            if require_mount and params[target] is not None:
                files.require_mount(params[target])
            return run(*args, **params)

        command.callback = run_on_mount
        command.params.append(
            click.Option(
                ["--require-mount"],
                is_flag=True,
                help="Reject a folder that is not on a disk mounted below /, such as a removable or network disk.",
            )
        )
        return command

    return add


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one value per line.")


def common_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --store and --json. The command gets `path` and `out`."""

    @store_option("Folder of the store")
    @json_option
    @wraps(function)
    def command(*args: Any, as_json: bool, **kwargs: Any) -> Any:
        return function(*args, out=Output(as_json=as_json), **kwargs)

    return command


def with_store(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the common options, and open the store or connect to it. The command gets `store` and `out`."""

    @common_options
    @wraps(function)
    def command(*args: Any, path: Path, **kwargs: Any) -> Any:
        with open_or_connect(path) as store:
            return function(*args, store=store, **kwargs)

    return command


_read_only_option = click.option(
    "--read-only",
    is_flag=True,
    help="Do not write into the store's folder, for example if its disk is read-only or full.",
)


def reading_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the common options and --read-only. The command gets `path`, `out` and `read_only`."""
    return common_options(_read_only_option(function))


def with_store_to_read(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `reading_options`, and open the store or connect to it. The command gets `store` and `out`."""

    @reading_options
    @wraps(function)
    def command(*args: Any, path: Path, read_only: bool, **kwargs: Any) -> Any:
        with open_or_connect(path, read_only=read_only) as store:
            return function(*args, store=store, **kwargs)

    return command


def strict(command: click.Command) -> click.Command:
    """Make a command reject text that is not UTF-8, and numbers above `sys.maxsize`."""
    if type(command) is click.Group:  # other groups load their commands later
        for each in command.commands.values():
            strict(each)
    for param in command.params:
        if param.type is click.STRING:
            param.type = PlainText()
        elif isinstance(param.type, click.IntRange) and param.type.max is None:
            param.type = Integer(param.type.min)
    return command


def full_users(store: CableStore, texts: Iterable[str]) -> list[bytes]:
    """Return the public keys of users. Texts are names, 64 hex digits, or at least the first 4 of a known key."""
    return [_one(text, _users_of(store, text), "user found with the name or public key prefix") for text in texts]


def full_targets(store: CableStore, texts: Iterable[str]) -> tuple[list[bytes], list[bytes]]:
    """Return the users and posts that strings identify, as in `full_users` and `full_hash`."""
    found_users, found_posts = list[bytes](), list[bytes]()
    for text in texts:
        posts = {digest: f"the post {digest.hex()}" for digest in _posts_of(store, text)}
        users = {} if posts and typed_key(text) is not None else _users_of(store, text)
        one = _one(text, posts | users, "user or post found with the name, public key prefix or hash prefix")
        (found_posts if one in posts else found_users).append(one)
    return found_users, found_posts


def _one(text: str, found: dict[bytes, str], missing: str) -> bytes:
    """Return the only key or hash in `found`, which maps each candidate to its description.

    Raises UsageError if `found` is empty, with the text `missing`, or contains several candidates, which it then lists.
    """
    if not found:
        raise click.UsageError(f"no {missing} {text!r}. For an unknown user or post, use all 64 hex digits")
    if len(found) > 1:
        raise click.UsageError(ambiguous(text, found.values()))
    return next(iter(found))


def _users_of(store: CableStore, text: str) -> dict[bytes, str]:
    """Return descriptions of the users that a string may identify, by public key."""
    return {user.public_key: described(user) for user in store.find_users(text)}


def stored_channel(store: CableStore, text: str) -> str:
    """Return the stored name of a channel, which may be dropped, or the name of a new channel.

    See `CableStore.find_channel`.
    """
    if not typed_channel(text):
        raise click.UsageError(
            f"invalid channel name {text!r}: expected 1 to {limits.MAX_CHANNEL_CODEPOINTS} code points, got 0"
        )
    return store.find_channel(text)


def stored_channels(store: CableStore, texts: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct names of channels as in `stored_channel`."""
    return tuple(dict.fromkeys(stored_channel(store, text) for text in texts))


def _posts_of(store: CableStore, text: str) -> Iterator[bytes]:
    """Yield up to two stored posts whose hashes begin with a string, or a dropped post with this hash."""
    prefix = text.lower()
    if not _is_prefix(prefix):
        return
    found = store.find_hashes(prefix, 2)
    yield from found
    if len(prefix) == 64 and not found and store.moderation.dropped_post(bytes.fromhex(prefix)) is not None:
        yield bytes.fromhex(prefix)


def _is_prefix(text: str) -> bool:
    return 4 <= len(text) <= 64 and not text.strip("0123456789abcdef")


def full_hash(store: CableStore, text: str, *, with_deleted: bool = False) -> bytes:
    """Return the hash that `text` identifies: all 64 hex digits, or at least the first 4 of a stored post.

    With `with_deleted`, deleted posts are included.
    """
    if len(text) == 64:
        return parse_hex(text, "a hash")
    prefix = text.lower()
    if len(prefix) < 4 or prefix.strip("0123456789abcdef"):
        raise click.UsageError(
            f"invalid hash {text!r}: expected 64 hex digits, or at least the first 4 of a stored post"
        )
    found = store.find_hashes(prefix, 2, with_deleted=with_deleted)
    if len(found) == 1:
        return found[0]
    raise click.UsageError(
        f"no post found with the hash prefix {prefix}"
        if not found
        else f"several posts have the hash prefix {prefix}. Add more digits"
    )
