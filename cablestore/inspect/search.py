"""Search in the texts, and links to posts, users and channels by name or digits."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from cablestore.errors import ArgumentError, MissingExtraError, NotFoundError, StorageError
from cablestore.inspect.channels import message_fields
from cablestore.inspect.page import PAGE_ROWS, Inspected, Page, Query
from cablestore.store.cursor import SearchCursor

_MIN_DIGITS = 4
_MAX_FOUND = 20


async def search(inspected: Inspected, query: Query) -> Page:
    """Return messages that contain all words, and posts, users and channels that the text names."""
    text = query.text("q").strip()
    data: dict[str, Any] = {"q": text, "hits": [], "jumps": [], "next": None, "pending": 0, "problem": ""}
    if not text:
        return Page("search", "Search", data)
    data["jumps"] = await _jumps(inspected, text)
    cursor = SearchCursor(query.text("cursor")) if query.text("cursor") else None
    try:
        page = await inspected.store.search(text, channel=query.text("channel") or None, limit=PAGE_ROWS, cursor=cursor)
    except (ArgumentError, MissingExtraError, StorageError) as error:
        data["problem"] = str(error)
        return Page("search", "Search", data)
    data["hits"] = [message_fields(inspected, hit.message) | {"excerpt": hit.excerpt.parts()} for hit in page.hits]
    data |= {"pending": page.pending, "next": None if page.cursor is None else {"cursor": page.cursor}}
    return Page("search", "Search", data)


async def _jumps(inspected: Inspected, text: str) -> list[dict[str, str]]:
    """Return the posts, users and channels that a text names, with the addresses of their pages."""
    store, digits = inspected.store, text.lower()
    found = list[dict[str, str]]()
    if len(digits) >= _MIN_DIGITS and not digits.strip("0123456789abcdef"):
        for digest in await store.find_hashes(digits[:64], _MAX_FOUND, with_deleted=True):
            post = await store.get(digest)
            if post is None or inspected.shows(post):
                found.append(_jump("post", digest.hex(), "/post", hash=digest.hex()))
    users = await store.find_users(text)
    found += [_jump("user", user.name, "/user", key=user.public_key.hex()) for user in users[:_MAX_FOUND]]
    try:
        name = await store.find_channel(text)
    except NotFoundError:
        return found
    if name in [channel.name async for channel in store.channels(with_latest=False)]:
        found.append(_jump("channel", f"#{name}", "/channel", name=name))
    return found


def _jump(kind: str, text: str, path: str, **parameters: str) -> dict[str, str]:
    return {"kind": kind, "text": text, "href": f"{path}?{urlencode(parameters)}"}
