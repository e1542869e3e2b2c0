"""The list of users, a user with names over time, and the roles of users with the actions that assigned them."""

from __future__ import annotations

from typing import Any, Final

from cablestore.inspect.page import PAGE_ROWS, Inspected, Page, Query, paged
from cablestore.inspect.rows import key_bytes, key_text
from cablestore.moderation import Decision, UserRole
from cablestore.protocol.body import INFO, ROLE, Info, Text, Topic
from cablestore.store.display import User
from cablestore.views.author import prefix_of

_COLUMNS: Final = ("name", "public_key", "role", "state")
_MAX_ACTS: Final = 500
_DAY_MS: Final = 86_400_000


async def users(inspected: Inspected, query: Query) -> Page:
    """Return the list of users: all authors of posts."""
    rows = [
        {"name": user.name, "public_key": user.public_key.hex(), "role": _role(user), "state": _state(inspected, user)}
        async for user in inspected.store.users()
    ]
    return Page("users", "Users", paged(rows, query, "public_key", "name", _COLUMNS), "")


def _role(user: User) -> str:
    return user.role.name.lower()


def _state(inspected: Inspected, user: User) -> str:
    acts = {"dropped": user.dropped_by, "blocked": user.blocked_by, "hidden": user.hidden_by}
    return ", ".join(word for word, act in acts.items() if inspected.act(act) is not None)


async def user(inspected: Inspected, query: Query) -> Page:
    """Return a user: names over time, posts per day, and a page of posts."""
    store, key = inspected.store, query.id("key")
    found = await store.user(key)
    infos = [post async for post in store.posts_by(key, post_type=INFO)]
    prefix = prefix_of(key)
    after = key_bytes(query.text("after")) if query.text("after") else None
    rows, is_more = await inspected.rows(prefix, PAGE_ROWS, after)
    posts = [post for post in [await store.get(digest) for _, digest in rows] if post is not None]
    data = {
        "public_key": key,
        "name": found.name,
        "role": found.role,
        "state": _state(inspected, found),
        "acts": [
            act for act in map(inspected.act, (found.dropped_by, found.blocked_by, found.hidden_by)) if act is not None
        ],
        "names": [
            {"name": post.body.name, "timestamp_ms": post.timestamp_ms, "hash": post.hash}
            for post in infos
            if isinstance(post.body, Info)
        ],
        "days": await store.post_counts(_DAY_MS, author=key),
        "posts": [
            {
                "hash": post.hash,
                "type": post.type_name,
                "channel": post.channel,
                "timestamp_ms": post.timestamp_ms,
                "text": _text(post.body),
                "is_local_only": post.is_local_only,
            }
            for post in posts
        ],
        "next": {"after": key_text(rows[-1][0])} if is_more and rows else None,
    }
    return Page("user", f"User {found.name}", data, None if after else "", 200 if posts or infos else 404)


def _text(body: Any) -> str:
    return (
        body.text if isinstance(body, Text) else body.topic if isinstance(body, Topic) else getattr(body, "reason", "")
    )


async def roles(inspected: Inspected, query: Query) -> Page:
    """Return the actions of a context with their results, the roles that apply, and the users who assigned them."""
    moderation = inspected.store.moderation
    context = query.text("context") or None
    history = await moderation.history(context)
    decisions = [each for each in history if inspected.act(each.act) is not None]
    edges = [_edge(each) for each in decisions if each.act.type == ROLE]
    holders = [user async for user in inspected.store.users() if user.role is not UserRole.USER]
    own_key = None if inspected.is_public else await inspected.store.public_key
    keys = [key for edge in edges for key in (edge["giver"], edge["recipient"])] + [user.public_key for user in holders]
    seed = moderation.seed
    data = {
        "context": context,
        "contexts": await moderation.contexts(),
        "own_key": own_key,
        "seeded": [] if seed is None or inspected.is_public else [key for key, _ in seed.roles],
        "holders": [{"public_key": user.public_key, "name": user.name, "role": user.role} for user in holders],
        "edges": edges,
        "actions": [
            (inspected.act(each.act) or {}) | {"target": each.target, "result": each.result}
            for each in reversed(decisions[-_MAX_ACTS:])
        ],
        "names": await inspected.names([*keys, *(each.act.author for each in decisions[-_MAX_ACTS:])]),
    }
    return Page("roles", "Roles and actions", data, "")


def _edge(decision: Decision) -> dict[str, Any]:
    act = decision.act
    return {
        "giver": act.author,
        "recipient": decision.target,
        "role": act.role,
        "hash": act.hash,
        "timestamp_ms": act.timestamp_ms,
        "result": decision.result,
    }
