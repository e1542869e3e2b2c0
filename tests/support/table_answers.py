"""What a store answers, as rows of the tables that the Spark job writes. From its API alone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from cablestore import CableStore, Post
from cablestore.index.reader import TOMBSTONE_PREFIX, decode_tombstone
from cablestore.protocol.body import JOIN, LEAVE, TEXT, TOPIC, TYPE_NAMES, Delete, Info, Text, Topic

Rows = list[dict[str, Any]]


def answers(store: CableStore) -> dict[str, Rows]:
    """Return the rows of each table, in order."""
    posts = sorted(all_posts(store), key=lambda post: (post.timestamp_ms, post.hash))
    names = {user.public_key: user.name for user in store.users()}
    return {
        "posts": [of_post(post) for post in posts],
        "messages": list(_messages(store)),
        "topics": list(_topics(store, posts, names)),
        "members": list(_members(store)),
        "users": list(_users(store, posts)),
        "channels": list(_channels(store, posts)),
        "deletions": _deletions(store, names),
    }


def in_order(found: Rows) -> Rows:
    return sorted(found, key=lambda row: (row.get("timestamp", 0), row.get("hash", ""), repr(row)))


def all_posts(store: CableStore) -> Iterator[Post]:
    for user in store.users():
        yield from (post for post in store.posts_by(user.public_key) if not post.is_local_only)


def of_post(post: Post) -> dict[str, Any]:
    body = post.body
    return {
        "hash": post.hash.hex(),
        "author": post.author.hex(),
        "type": post.type_name,
        "timestamp": post.timestamp_ms,
        "time": time_of(post.timestamp_ms),
        "channel": post.channel,
        "text": body.text if isinstance(body, Text) else None,
        "topic": body.topic if isinstance(body, Topic) else None,
        "name": body.name if isinstance(body, Info) else None,
        "links": [link.hex() for link in post.links],
        "targets": [target.hex() for target in body.hashes] if isinstance(body, Delete) else [],
    }


def time_of(timestamp_ms: int) -> datetime | None:
    if timestamp_ms >= 253_402_300_800_000:
        return None
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None, microsecond=1000 * milliseconds)


def _messages(store: CableStore) -> Iterator[dict[str, Any]]:
    found = []
    for channel in store.channels(with_reserved=True):
        cursor = None
        while True:
            page = store.messages(channel.name, 500, newest_first=False, cursor=cursor)
            found += page.messages
            cursor = page.cursor
            if cursor is None:
                break
    for message in sorted(found, key=lambda message: (message.timestamp_ms, message.hash)):
        yield {
            "hash": message.hash.hex(),
            "channel": message.channel,
            "author": message.author.hex(),
            "name": message.name,
            "timestamp": message.timestamp_ms,
            "time": time_of(message.timestamp_ms),
            "text": message.text,
            "links": [link.hex() for link in message.links],
        }


def _topics(store: CableStore, posts: list[Post], names: dict[bytes, str]) -> Iterator[dict[str, Any]]:
    latest = {post.channel: post.hash for post in posts if post.type == TOPIC}
    for post in posts:
        if isinstance(post.body, Topic):
            is_current = latest[post.channel] == post.hash
            assert not is_current or store.topic(post.channel or "") == post.body.topic
            yield {
                "hash": post.hash.hex(),
                "channel": post.channel,
                "author": post.author.hex(),
                "name": names[post.author],
                "timestamp": post.timestamp_ms,
                "time": time_of(post.timestamp_ms),
                "topic": post.body.topic,
                "is_current": is_current,
            }


def _members(store: CableStore) -> Iterator[dict[str, Any]]:
    for channel in store.channels(with_reserved=True):
        for user in store.members(channel.name):
            here = store.posts_by(user.public_key, channel=channel.name)
            latest = max(here, key=lambda post: (post.timestamp_ms, post.hash))
            yield {
                "channel": channel.name,
                "author": user.public_key.hex(),
                "name": user.name,
                "type": latest.type_name,
                "timestamp": latest.timestamp_ms,
                "time": time_of(latest.timestamp_ms),
                "hash": latest.hash.hex(),
            }


def _users(store: CableStore, posts: list[Post]) -> Iterator[dict[str, Any]]:
    for user in store.users():
        own = [post for post in posts if post.author == user.public_key]
        if own:
            yield {"author": user.public_key.hex(), "name": user.name, "posts": len(own), **_first_and_last(own)}


def _channels(store: CableStore, posts: list[Post]) -> Iterator[dict[str, Any]]:
    for channel in store.channels(with_reserved=True):
        here = [post for post in posts if post.channel == channel.name and post.type in (TEXT, TOPIC, JOIN, LEAVE)]
        yield {
            "channel": channel.name,
            "topic": channel.topic,
            "members": channel.members,
            **{f"{kind}s": channel.posts.get(kind, 0) for kind in ("text", "topic", "join", "leave")},
            **_first_and_last(here),
        }


def _deletions(store: CableStore, names: dict[bytes, str]) -> Rows:
    stones = [decode_tombstone(row) for row in store.dump() if row[0].startswith(TOMBSTONE_PREFIX)]
    found = [
        {
            "target": stone.target.hex(),
            "author": stone.author.hex(),
            "name": names[stone.author],
            "hash": stone.deleted_by.hex(),
            "timestamp": stone.deleted_at_ms,
            "time": time_of(stone.deleted_at_ms),
            "type": TYPE_NAMES[stone.skeleton.type],
            "channel": stone.skeleton.channel,
            "target_timestamp": stone.skeleton.timestamp_ms,
        }
        for stone in stones
        if stone.skeleton is not None
    ]
    return sorted(found, key=lambda row: (row["timestamp"], row["target"]))


def _first_and_last(posts: list[Post]) -> dict[str, datetime | None]:
    times = [time for post in posts if (time := time_of(post.timestamp_ms)) is not None]
    return {"first_post": min(times, default=None), "last_post": max(times, default=None)}
