"""Calls of a store that cover its methods, and their results: for stores that must answer like the plain one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from history import AUTHORS, CHANNELS
from hypothesis import strategies as st
from people import raws

from cablestore import Page, Post
from cablestore.errors import CableStoreError
from cablestore.moderation import UserRole
from cablestore.store.cursor import ChangesCursor
from cablestore.store.queries import Queries

Call = tuple[str, tuple[Any, ...], dict[str, Any]]
"""A method's name, with the prefix "moderation." for an action, and its arguments."""

READS: list[Call] = [
    *((name, (channel,), {}) for name in ("messages", "members", "topic", "heads", "missing") for channel in CHANNELS[:3]),
    *(("channels", (), {"with_reserved": flag}) for flag in (True, False)),
    *((name, (who.public_key,), {}) for name in ("posts_by", "user") for who in AUTHORS),
    *((name, (), {}) for name in ("users", "stats", "dump", "dump_digest", "check")),
    *((name, (), {}) for name in ("moderation.in_force", "moderation.history", "moderation.contexts")),
    ("find_hashes", ("a",), {"with_deleted": True}),
    ("rows", (b"!chat!", 7), {"after_key": b"!chat!text"}),
    *(("channel_graph", (channel, 5), {}) for channel in CHANNELS[:3]),
    *(("post_counts", (3_600_000,), more) for more in ({}, {"channel": CHANNELS[0]}, {"author": AUTHORS[0].public_key})),
    *((name, (value,), {}) for name, value in (("rows_of", bytes(32)), ("graph_nodes", [bytes(32)]))),
    *(("find_channel", (text,), {}) for text in (CHANNELS[0], f"#{CHANNELS[1].upper()}", "new", "")),
    *(("user", (who.public_key, CHANNELS[0]), {}) for who in AUTHORS),
    *(("channels", (), {"member": who.public_key}) for who in AUTHORS),
    *((name, (AUTHORS[0].public_key,), {}) for name in ("moderation.user_drop", "moderation.dropped_post")),
    ("messages", (CHANNELS[0],), {"hidden": "show", "newest_first": False}),
    ("messages", (CHANNELS[0], 1), {"cursor": "0"}),
    ("causal_messages", (CHANNELS[0], 0), {}),
    ("events", (), {"timeout_s": 0}),
    ("changes", (), {"timeout_s": 0}),
    *((name, (), {}) for name in ("local.drafts", "local.muted")),
    ("local.items", ("name",), {}),
]  # fmt: skip


drafts = st.tuples(st.integers(0, 23), st.integers(0, 2), st.integers(0, 2), st.lists(st.integers(0, 15), max_size=6))
"""The call, and the values for its arguments: a channel, a user, and posts."""


def call_of(draft: tuple[int, int, int, list[int]], posts: list[Post]) -> Call:
    kind, place, person, numbers = draft
    channel, who, word = CHANNELS[place], AUTHORS[person].public_key, ("", "a word", "x" * 5000)[person]
    some = [posts[number % len(posts)] for number in numbers]
    hashes = [post.hash for post in some]
    made: list[Call] = [
        ("ingest", (raws(*some),), {"batch_posts": 1 + place}),
        ("ingest", ([*raws(*some), b"no post"],), {"batch_posts": 2}),
        ("post", (channel, word), {"sync": False}),
        ("set_topic", (channel, word), {"sync": True}),
        ("join", (channel,), {}),
        ("leave", (channel,), {}),
        ("set_info", (), {"name": word}),
        ("delete", (hashes,), {}),
        ("discard", (hashes,), {}),
        ("prune", (), {"by_author": who}),
        ("prune", (), {"keep_newest": 1}),
        ("get", (hashes[0] if hashes else bytes(32),), {}),
        ("moderation.hide", (), {"users": [who]}),
        ("moderation.hide", (), {"posts": hashes, "private": True}),
        ("moderation.block", ([who],), {"drop": True, "private": True}),
        ("moderation.drop", (), {"channel": channel, "dry_run": bool(some)}),
        ("moderation.set_role", (who, UserRole.MOD), {}),
        ("moderation.sweep", (), {}),
        ("rebuild", (), {}),
        ("compact", (), {}),
        ("local.put", ("name", channel, word.encode()), {}),
        ("local.delete", ("name", channel), {}),
        ("local.set_draft", (channel, word), {"sync": True}),
        ("local.mute", (channel,), {}),
    ]
    return made[kind]


def blocking_result(store: Queries, call: Call) -> Any:
    name, args, kwargs = call
    try:
        found = method_of(store, name)(*args, **kwargs)
        return list(found) if isinstance(found, Iterator) else comparable(found)
    except CableStoreError as error:
        return type(error), str(error)


def comparable(found: Any) -> Any:
    """Return a result without the cursor of changes, which identifies the database."""
    return found._replace(changes_cursor=ChangesCursor("")) if isinstance(found, Page) else found


def method_of(store: Any, name: str) -> Any:
    for part in name.split("."):
        store = getattr(store, part)
    return store
