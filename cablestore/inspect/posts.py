"""A post: its fields, bytes, rows and links, and the deletions and actions that affect it."""

from __future__ import annotations

from typing import Any

from cablestore.inspect.fields import hex_lines, post_fields
from cablestore.inspect.page import Inspected, Page, Query
from cablestore.inspect.rows import decoded_row, is_local
from cablestore.protocol.body import TYPE_NAMES, Text
from cablestore.protocol.post import Post
from cablestore.store.channel_graph import GraphNode
from cablestore.views.installed import installed_catalog

_MAX_LINKS = 200


async def post(inspected: Inspected, query: Query) -> Page:
    """Return a stored, deleted, dropped or unknown post."""
    store, digest = inspected.store, query.id("hash")
    found = await store.get(digest)
    if found is not None and not inspected.shows(found):
        found = None
    catalog = installed_catalog()
    rows = [
        decoded_row(catalog, key, value)
        for key, value in await store.rows_of(digest)
        if not (inspected.is_public and is_local(key))
    ]
    [node] = await store.graph_nodes([digest])
    incoming = await store.links(digest, incoming=True)
    data: dict[str, Any] = {
        "hash": digest,
        "state": node.state if found is not None or node.state != "stored" else "missing",
        "is_head": node.is_head,
        "post": None,
        "rows": rows if found is not None or node.state != "stored" else [],
        "outgoing": await _linked(inspected, node.links),
        "incoming": await _linked(inspected, incoming),
        "incoming_count": len(incoming),
        "fate": await _fate(inspected, digest, node, found),
    }
    if found is not None:
        data["post"] = await _stored(inspected, found)
    authors = [each["author"] for each in (*data["outgoing"], *data["incoming"]) if each["author"]]
    data["names"] = await inspected.names(
        [*authors, *([node.author] if node.author and data["state"] != "missing" else [])]
    )
    is_known = data["state"] != "missing" or bool(incoming)
    return Page("post", f"Post {digest.hex()[:12]}", data, "", 200 if is_known else 404)


async def _stored(inspected: Inspected, found: Post) -> dict[str, Any]:
    fields = post_fields(found, inspected.store.dialect)
    user = await inspected.store.user(found.author, found.channel)
    return {
        "type": found.type_name,
        "channel": found.channel,
        "author": found.author,
        "name": user.name,
        "role": user.role,
        "timestamp_ms": found.timestamp_ms,
        "size_bytes": len(found.raw),
        "is_local_only": found.is_local_only,
        "fields": fields,
        "lines": hex_lines(found, fields),
    }


async def _linked(inspected: Inspected, hashes: tuple[bytes, ...]) -> list[dict[str, Any]]:
    return [
        {
            "hash": node.hash,
            "state": node.state,
            "type": None if node.type is None else TYPE_NAMES[node.type],
            "author": node.author,
            "timestamp_ms": node.timestamp_ms,
        }
        for node in await inspected.store.graph_nodes(hashes[:_MAX_LINKS])
    ]


async def _fate(inspected: Inspected, digest: bytes, node: GraphNode, found: Post | None) -> list[dict[str, Any]]:
    """Return the deletions and actions that affect a post or its author, each with a word for its effect."""
    store, fate = inspected.store, list[dict[str, Any]]()
    stone = await store.deletion(digest)
    if stone is not None:
        for at_ms, by in stone.deletions:
            fate.append({"word": "deleted", "hash": by, "author": stone.author, "timestamp_ms": at_ms, "reason": ""})
    dropped = await store.moderation.dropped_post(digest)
    if dropped is not None and not inspected.is_public:
        act = await store.get(dropped.act)
        fate.append({
            "word": "dropped",
            "hash": dropped.act,
            "author": None if act is None else act.author,
            "timestamp_ms": None if act is None else act.timestamp_ms,
            "reason": getattr(act.body, "reason", "") if act is not None else "",
        })  # fmt: skip
    acts = []
    if found is not None and isinstance(found.body, Text):
        acts.append(("hidden", (await store.resolve(found)).hidden_by))
    if node.author is not None:
        user = await store.user(node.author)
        acts += [("author blocked", user.blocked_by), ("author dropped", user.dropped_by)]
    for word, one in acts:
        fields = inspected.act(one)
        if fields is not None:
            fate.append({"word": word} | {name: fields[name] for name in ("hash", "author", "timestamp_ms", "reason")})
    return fate
