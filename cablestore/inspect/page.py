"""Pages as data: the content of a page, the parameters of its address, and the store that it reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

from cablestore.aio import AsyncCableStore
from cablestore.errors import ArgumentError, DecodeError
from cablestore.index.database import Row
from cablestore.index.reader import PRIVATE_PREFIX, hash_part
from cablestore.inspect.rows import is_local
from cablestore.moderation import Action, ModerationAct, UserRole
from cablestore.protocol.body import BLOCK, MODERATION, ROLE, TYPE_NAMES
from cablestore.protocol.keys import parse_hex
from cablestore.protocol.post import Post
from cablestore.remote.node import WatchedNode

PAGE_ROWS: Final = 50
"""Rows of one page of a table."""
_MAX_DIGITS: Final = 16
_MAX_PRIVATE: Final = 100_000


class Page(NamedTuple):
    """Data of a page. `live_channel` is the channel whose events change the page, "" for all events, None for none."""

    template: str
    title: str
    data: dict[str, Any]
    live_channel: str | None = None
    status: int = 200


class Inspected(NamedTuple):
    """Store that is shown. With `is_public`, local and private data is left out."""

    store: AsyncCableStore
    node: WatchedNode | None
    is_public: bool
    archives: Path | None

    def shows(self, post: Post) -> bool:
        """Return True if the pages may show a post."""
        return not (self.is_public and post.is_local_only)

    def act(self, act: ModerationAct | None) -> dict[str, Any] | None:
        """Return the fields of a moderation action, None if it is left out."""
        if act is None or (self.is_public and act.is_private):
            return None
        return act._asdict() | {"type": TYPE_NAMES[act.type], "what": _what(act)}

    async def rows(self, prefix: bytes, limit: int, after_key: bytes | None) -> tuple[list[Row], bool]:
        """Return up to `limit` rows whose keys begin with `prefix` and follow `after_key`, and True if more may follow.

        Rows that are left out (`is_public`) do not count.
        """
        rows: list[Row] = []
        private = await self._private_hashes()
        while True:
            found = await self.store.rows(prefix, limit, after_key=after_key)
            rows += [row for row in found if not (self.is_public and _is_local(row, private))]
            if len(found) < limit or len(rows) >= limit:
                return rows[:limit], len(found) == limit
            after_key = found[-1][0]
            if is_local(after_key):  # skip the other local rows, because there may be as many as there are posts
                after_key = b"!%b!\xff" % after_key.split(b"!")[1]

    async def _private_hashes(self) -> list[bytes]:
        """Return the hashes of local-only posts if `is_public` leaves out their rows, otherwise []."""
        found = await self.store.rows(PRIVATE_PREFIX, _MAX_PRIVATE) if self.is_public else []
        return [bytes.fromhex(hash_part(row).decode()) for row in found]

    async def names(self, keys: Sequence[bytes]) -> dict[str, str]:
        """Return the names of users by their public keys in hex."""
        return {key.hex(): (await self.store.user(key)).name for key in dict.fromkeys(keys)}


def _is_local(row: Row, private: list[bytes]) -> bool:
    """Return True for a local row, and for a row that refers to a post whose hash is in `private`."""
    key, value = row
    return is_local(key) or any(digest in value or digest.hex()[:32].encode() in key for digest in private)


def _what(act: ModerationAct) -> str:
    if act.type == ROLE:
        return act.role.name.lower()
    if act.type == MODERATION:
        return Action(act.what).name.lower().replace("_", " ")
    verb = "block" if act.type == BLOCK else "unblock"
    return f"{verb} and {'' if act.type == BLOCK else 'un'}drop" if act.drops else verb


class Query:
    """Parameters of the address of a page. Methods raise ArgumentError for an invalid parameter."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given: Final = {name: value for name, value in given.items() if name != "format"}

    def text(self, name: str) -> str:
        """Return a parameter, "" if it is missing."""
        return self.given.get(name, "")

    def number(self, name: str, default: int | None = None) -> int | None:
        """Return a parameter that is a whole number, `default` (by default None) if it is missing."""
        text = self.text(name)
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
            raise ArgumentError(f"invalid {name} {text[:40]!r}: expected a whole number. Correct the address")
        return int(text)

    def id(self, name: str) -> bytes:
        """Return a parameter that is a hash or a public key in hex."""
        try:
            return parse_hex(self.text(name), f"the parameter {name}")
        except DecodeError as error:
            raise ArgumentError(f"{error.reason}. Correct the address") from None

    def channel(self) -> str:
        """Return the parameter `name`, the name of a channel."""
        if not self.text("name"):
            raise ArgumentError("missing parameter: name. Choose a channel from the list")
        return self.text("name")


def paged(rows: list[dict[str, Any]], query: Query, key: str, default: str, columns: Sequence[str]) -> dict[str, Any]:
    """Sort a list of all rows, and return the page of rows after the cursor.

    The cursor is the value of `key` in the last row of the previous page. `default` is the column to sort by, with a
    minus sign for descending order.
    """
    order = query.text("sort") or default
    column = order.removeprefix("-")
    if column not in columns:
        raise ArgumentError(f"invalid sort {order[:40]!r}: expected one of {', '.join(columns)}. Correct the address")
    rows = sorted(rows, key=lambda row: (_rank(row[column]), row[key]), reverse=order.startswith("-"))
    names = [row[key] for row in rows]
    after = query.text("after")
    start = names.index(after) + 1 if after in names else 0
    shown = rows[start : start + PAGE_ROWS]
    is_end = start + PAGE_ROWS >= len(rows)
    return {"rows": shown, "sort": order, "total": len(rows), "next": None if is_end else {"after": shown[-1][key]}}


def _rank(value: Any) -> tuple[bool, Any]:
    """Return a key that sorts missing values first, and text without regard to case."""
    return value is not None, value.lower() if isinstance(value, str) else value or 0


def plain(value: Any) -> Any:
    """Convert a value for JSON: bytes to hex digits, records to objects."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Enum | Path):
        return value.name.lower() if isinstance(value, UserRole) else str(value)
    if (fields := _fields_of(value)) is not None:
        return {name: plain(each) for name, each in fields.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple | frozenset) else value


def _fields_of(value: Any) -> dict[str, Any] | None:
    """Return the fields of a record or mapping by name, None for another value."""
    if isinstance(value, Mapping):
        return {str(plain(key)): each for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        found: dict[str, Any] = value._asdict()
        return found
    if dataclasses.is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    return None
