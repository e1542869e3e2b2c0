"""The list of channels, a channel as its members see it, and the graph of its links."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from cablestore import limits
from cablestore.errors import ArgumentError
from cablestore.inspect.page import PAGE_ROWS, Inspected, Page, Query, paged
from cablestore.store.cursor import MessageCursor
from cablestore.store.display import Message

_COLUMNS: Final = ("name", "topic", "members", "posts", "latest_ms")
_MAX_MEMBERS: Final = 200
_MAX_GRAPH_POSTS: Final = 5_000
_MAX_NAMES: Final = 12
"""Maximum number of authors in the legend of a graph."""
_COLUMNS_OF_TIME: Final = 120
"""Maximum number of bars in the chart of all posts of a channel."""


async def channels(inspected: Inspected, query: Query) -> Page:
    """Return the list of channels."""
    rows = [
        {
            "name": each.name,
            "topic": each.topic,
            "members": each.members,
            "posts": sum(each.posts.values()),
            "latest_ms": each.last_message.timestamp_ms if each.last_message else None,
        }
        async for each in inspected.store.channels(with_reserved=True)
    ]
    return Page("channels", "Channels", paged(rows, query, "name", "name", _COLUMNS), "")


async def channel(inspected: Inspected, query: Query) -> Page:
    """Return a channel as its members see it: topic, members, and messages, newest first."""
    store, name = inspected.store, query.channel()
    cursor = MessageCursor(query.text("cursor")) if query.text("cursor") else None
    page = await store.messages(name, PAGE_ROWS, cursor=cursor, hidden="show")
    members = [user async for user in store.members(name)]
    data = {
        "name": name,
        "topic": await store.topic(name),
        "members": [
            {"public_key": user.public_key, "name": user.name, "role": user.role} for user in members[:_MAX_MEMBERS]
        ],
        "member_count": len(members),
        "heads": await store.heads(name),
        "messages": [message_fields(inspected, message) for message in page.messages],
        "next": None if page.cursor is None else {"cursor": page.cursor},
    }
    return Page("channel", f"#{name}", data, None if cursor else store.dialect.channel_id(name))


def message_fields(inspected: Inspected, message: Message) -> dict[str, Any]:
    """Return the fields of a message, with the action that hides it."""
    return {
        "hash": message.hash,
        "channel": message.channel,
        "author": message.author,
        "name": message.name,
        "timestamp_ms": message.timestamp_ms,
        "text": message.text,
        "links": len(message.links),
        "hidden_by": inspected.act(message.hidden_by),
    }


async def graph(inspected: Inspected, query: Query) -> Page:
    """Return the newest posts of a channel in a period with their links, and counts of all its posts over time."""
    store, name = inspected.store, query.channel()
    after_ms, before_ms = query.number("after"), query.number("before")
    if after_ms is not None and before_ms is not None and after_ms >= before_ms:
        raise ArgumentError("invalid period: the start must precede the end. Correct the address")
    limit = max(1, min(query.number("limit", limits.MAX_GRAPH_POSTS) or 1, _MAX_GRAPH_POSTS))
    found = await store.channel_graph(name, limit, after_ms=after_ms, before_ms=before_ms)
    hours = await store.post_counts(3_600_000, channel=name)
    authors = Counter(node.author for node in found.nodes if node.author is not None)
    data = {
        "name": name,
        "after_ms": after_ms,
        "before_ms": before_ms,
        "axis": "time" if query.text("axis") == "time" else "order",
        "nodes": found.nodes,
        "is_complete": found.is_complete,
        "counts": _bars(hours),
        "authors": await inspected.names([key for key, _ in authors.most_common(_MAX_NAMES)]),
    }
    return Page("graph", f"Graph of #{name}", data, None if before_ms else store.dialect.channel_id(name))


def _bars(hours: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Return (start, end, posts) for each period with posts, in order. `hours` are (start of an hour, posts).

    The time of the channel is divided into at most `_COLUMNS_OF_TIME` periods of equal length, at least an hour.
    """
    if not hours:
        return []
    first_ms, last_ms = hours[0][0], hours[-1][0] + 3_600_000
    step_ms = max(3_600_000, -(-(last_ms - first_ms) // _COLUMNS_OF_TIME))
    counts: dict[int, int] = {}
    for at_ms, count in hours:
        step = (at_ms - first_ms) // step_ms
        counts[step] = counts.get(step, 0) + count
    return [
        (first_ms + step * step_ms, first_ms + (step + 1) * step_ms, count) for step, count in sorted(counts.items())
    ]
