"""The policy of a node: authors, channels and peers that it accepts, and limits of posts.

It is a TOML file with these optional tables and keys:

    [authors]                       [channels]         [peers]                         [posts]
    allow = ["<public key>"]        allow = ["news"]   allow = ["<host or key>"]       max-size = 4096
    deny = ["<public key>"]         deny = ["spam"]    deny = ["<host or key>"]
    posts-per-minute = 60                              posts-per-minute = 3000
    burst = 600                                        burst = 30000
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, NamedTuple, cast, get_args

import msgspec
from msgspec import UNSET, Struct, UnsetType

from cablestore.documents import as_declared
from cablestore.errors import ArgumentError, NodeError
from cablestore.files import read_small, text_of
from cablestore.limits import MAX_POST_SIZE_BYTES
from cablestore.peers.bans import host_name, is_ip_address
from cablestore.protocol.crypto import KEY_SIZE_BYTES
from cablestore.protocol.dialect import LEGACY, Dialect

NAME: Final = "policy.toml"
"""Default file of the policy, in the store's folder."""
REJECTED: Final = "the policy rejects the peer (`cablestore policy` shows it)"
"""Reason for the end of a connection."""
Kind = Literal["author", "channel", "peer"]
Action = Literal["allow", "deny", "remove"]
TABLES: Final[dict[Kind, str]] = {"author": "authors", "channel": "channels", "peer": "peers"}
"""Tables of the file, by the kind of entries in their lists."""

_MOST: Final = 10**9
_SHOWN: Final = 60
_DIGITS: Final = frozenset("0123456789abcdef")


class PostRate(NamedTuple):
    """Maximum number of posts per minute, and of posts that may arrive at once after a pause."""

    posts_per_minute: int
    burst: int


class Lists(Struct, frozen=True, rename="kebab"):
    """Denied and allowed entries. Unless `allow` is empty, all other entries are rejected."""

    allow: frozenset[str] = frozenset()
    deny: frozenset[str] = frozenset()

    def rejects(self, *names: str) -> bool:
        """Return True if one of `names` is denied, or if `allow` is not empty and contains none of them."""
        return not self.deny.isdisjoint(names) or (bool(self.allow) and self.allow.isdisjoint(names))


class LimitedLists(Lists, frozen=True, rename="kebab"):
    """Lists with a limit of posts for each author or peer, listed or not. `burst` is `posts_per_minute` by default."""

    posts_per_minute: int | UnsetType = UNSET
    burst: int | UnsetType = UNSET

    @property
    def rate(self) -> PostRate | None:
        """The limit, None for unlimited."""
        if self.posts_per_minute is UNSET:
            return None
        return PostRate(self.posts_per_minute, self.posts_per_minute if self.burst is UNSET else self.burst)


class PostLimits(Struct, frozen=True, rename="kebab"):
    """Limits of single posts. `max_size` is in bytes."""

    max_size: int | UnsetType = UNSET


class Policy(Struct, frozen=True):
    """Values of the file in normalized spelling. Keys are in lower-case hex."""

    authors: LimitedLists = LimitedLists()
    channels: Lists = Lists()
    peers: LimitedLists = LimitedLists()
    posts: PostLimits = PostLimits()

    EMPTY: ClassVar[Policy]

    @property
    def has_rules(self) -> bool:
        """True if the policy may reject posts or peers."""
        return self != Policy.EMPTY


Policy.EMPTY = Policy()


def parse_policy(text: str, dialect: Dialect = LEGACY) -> Policy:
    """Return the policy in the text of a file. Raises ValueError with the key, its value, and the expected values."""
    tables = tomllib.loads(text)
    _check_names("", tables, Policy)
    for name, kind in (("authors", LimitedLists), ("channels", Lists), ("peers", LimitedLists), ("posts", PostLimits)):
        table = tables.get(name, {})
        is_table = isinstance(table, dict)
        if not is_table:
            raise ValueError(f"invalid {name} = {_shown(table)}: expected a table [{name}]")
        _check_names(f"{name}.", table, kind)
        for key, value in table.items():
            _check_value(f"{name}.{key}", value)
        if "burst" in table and "posts-per-minute" not in table:
            raise ValueError(f"{name}.burst requires {name}.posts-per-minute")
    for kind_of_entry, name in TABLES.items():
        for key in ("allow", "deny"):
            if key in tables.get(name, {}):
                tables[name][key] = _entries(f"{name}.{key}", kind_of_entry, tables[name][key], dialect)
    return as_declared(tables, Policy)


def read_policy(path: Path, dialect: Dialect = LEGACY) -> Policy:
    """Read a policy. Raises NodeError with one line if the file is invalid or cannot be read."""
    try:
        return parse_policy(text_of(read_small(path)), dialect)
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise NodeError(f"invalid policy in {path}: {reason}") from None


def chosen_action(text: str) -> Action:
    """Return `text` as an action. Raises ArgumentError if it is not an action."""
    for action in get_args(Action):
        if text == action:
            return cast(Action, action)
    raise ArgumentError(f"invalid action {text[:_SHOWN]!r}: expected {' or '.join(get_args(Action))}")


def chosen_kind(text: str) -> Kind:
    """Return `text` as a kind of list entries. Raises ArgumentError if it is not a kind."""
    for kind in TABLES:
        if text == kind:
            return kind
    raise ArgumentError(f"invalid kind {text[:_SHOWN]!r}: expected {' or '.join(TABLES)}")


def entry_name(kind: Kind, text: str, dialect: Dialect = LEGACY) -> str:
    """Return the normalized spelling of an author, a channel or a peer. Raises ArgumentError if it is invalid."""
    if kind == "channel":
        if not text:
            raise ArgumentError("invalid channel '': expected a name")
        return dialect.channel_id(text)
    name = host_name(text)
    is_key = len(name) == 2 * KEY_SIZE_BYTES and _DIGITS.issuperset(name)
    if is_key or (kind == "peer" and (is_ip_address(name) or _is_host(name))):
        return name
    expected = "a public key of 64 hex digits" if kind == "author" else "an IP address, a host name or 64 hex digits"
    raise ArgumentError(f"invalid {kind} {text[:_SHOWN]!r}: expected {expected}")


def _is_host(name: str) -> bool:
    return bool(name) and len(name) < 2 * KEY_SIZE_BYTES and not any(c.isspace() or c in ":/@" for c in name)


def _entries(key: str, kind: Kind, names: Iterable[str], dialect: Dialect) -> list[str]:
    try:
        return [entry_name(kind, name, dialect) for name in names]
    except ArgumentError as error:
        raise ValueError(f"{key}: {error}") from None


def _check_names(prefix: str, table: dict[str, Any], kind: type[Struct]) -> None:
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    for name in table:
        if name not in known:
            likely = get_close_matches(name, known, 1)
            meant = f"Did you mean {prefix}{likely[0]}? " if likely else ""
            raise ValueError(f"unknown key {prefix}{name[:_SHOWN]}. {meant}Known keys: {', '.join(known)}")


def _check_value(key: str, value: Any) -> None:
    """Check the type and the range of one value."""
    name = key.rpartition(".")[2]
    if name in ("allow", "deny"):
        expected = "an array of strings"
        is_right = isinstance(value, list) and all(isinstance(each, str) for each in value)
    else:
        most = MAX_POST_SIZE_BYTES if name == "max-size" else _MOST
        expected = f"a whole number from 1 to {most}"
        is_right = type(value) is int and 1 <= value <= most
    if not is_right:
        raise ValueError(f"invalid {key} = {_shown(value)}: expected {expected}")


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
