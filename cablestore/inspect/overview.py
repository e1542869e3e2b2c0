"""The overview of a store, its activity by channel and author, and its arrival log."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from cablestore.index.on_disk import store_on_disk
from cablestore.inspect.page import Inspected, Page, Query

_DAY_MS: Final = 86_400_000
_WEEKS: Final = 26
_MAX_AUTHORS: Final = 300
"""Maximum number of authors whose posts one page counts. Each author takes a few milliseconds."""
_MAX_LINES: Final = 20
_EVENTS: Final = 100


async def overview(inspected: Inspected, _: Query) -> Page:
    """Return statistics of the store, its peers and its disk."""
    store = inspected.store
    stats, public_key = await store.stats(), await store.public_key
    data: dict[str, Any] = {
        "posts": sum(stats.posts.values()),
        "posts_by_type": stats.posts,
        "channels": stats.channels,
        "dialect": store.dialect.name,
        "last_sequence": stats.last_sequence,
        "write_failure": store.write_state.failure,
        "views": [
            {
                "view": name,
                "rows": size.rows,
                "size_bytes": size.size_bytes,
                "disk_size_bytes": stats.disk_size_bytes[name],
            }
            for name, size in sorted(stats.views.items())
            if name in stats.disk_size_bytes
        ],
        "days": stats.days,
        "peers": _peers(inspected),
    }
    if not inspected.is_public:
        data["local"] = {"public_key": public_key} | asdict(await asyncio.to_thread(store_on_disk, store.path))
    return Page("overview", "Overview", data, "")


def _peers(inspected: Inspected) -> dict[str, int] | None:
    state = None if inspected.node is None else inspected.node.state
    if state is None:
        return None
    return {"connected": len(state.peers), "in_step": sum(peer.is_in_step is True for peer in state.peers)}


async def activity(inspected: Inspected, query: Query) -> Page:
    """Return the posts per day of the channels or authors with the most posts in a period."""
    store, weeks = inspected.store, max(1, min(query.number("weeks", _WEEKS) or 1, 520))
    by = "author" if query.text("by") == "author" else "channel"
    stats = await store.stats()
    last_ms = query.number("before") or max((day_ms for day_ms, _ in stats.days), default=0) + _DAY_MS
    start_ms = max(0, last_ms - weeks * 7 * _DAY_MS)
    counts = partial(store.post_counts, _DAY_MS, after_ms=start_ms, before_ms=last_ms)
    lines: list[dict[str, Any]] = []
    is_complete = True
    if by == "channel":
        found = [each async for each in store.channels(with_latest=False)]
        for channel in sorted(found, key=lambda each: -sum(each.posts.values()))[:_MAX_LINES]:
            days = await counts(channel=channel.name)
            lines.append({"channel": channel.name, "days": days, "posts": sum(count for _, count in days)})
    else:
        async for user in store.users():
            is_complete = len(lines) < _MAX_AUTHORS
            if not is_complete:
                break
            days = await counts(author=user.public_key)
            posts = sum(count for _, count in days)
            lines.append({"author": user.public_key, "name": user.name, "days": days, "posts": posts})
    lines = sorted((line for line in lines if line["posts"]), key=lambda line: -line["posts"])[:_MAX_LINES]
    data = {
        "by": by,
        "weeks": weeks,
        "start_ms": start_ms,
        "end_ms": last_ms,
        "lines": lines,
        "is_complete": is_complete,
    }
    return Page("activity", "Activity", data)


async def arrivals(inspected: Inspected, query: Query) -> Page:
    """Return entries of the arrival log, newest first, without entries of local changes."""
    store = inspected.store
    before = query.number("before", store.last_sequence + 1) or 1
    after = max(0, before - 1 - _EVENTS)
    events: list[dict[str, Any]] = []
    async for event in store.events(after, timeout_s=0):
        if event.sequence >= before:
            break
        post = event.post
        if post is None or inspected.shows(post):
            events.append(event_fields(event.sequence, event.kind.name, event.hash, post))
    events.reverse()
    is_newest = not query.text("before")
    data = {"events": events, "next": {"before": after + 1} if after > 0 else None}
    return Page("log", "Arrival log", data, "" if is_newest else None)


def event_fields(sequence: int, kind: str, digest: bytes, post: Any) -> dict[str, Any]:
    """Return the fields of an entry of the arrival log, and of its `post`. They are None if `post` is None.

    `digest` is the hash of the post, which may no longer be stored.
    """
    return {
        "sequence": sequence,
        "kind": kind.lower(),
        "hash": digest,
        "type": None if post is None else post.type_name,
        "channel": None if post is None else post.channel,
        "author": None if post is None else post.author,
        "timestamp_ms": None if post is None else post.timestamp_ms,
    }
