"""Fields of an encoded post: the name, the value and the range of bytes of each."""

from __future__ import annotations

from dataclasses import fields as names_of
from typing import Any

from cablestore.protocol.body import POST_TYPES
from cablestore.protocol.crypto import HASH_SIZE_BYTES, KEY_SIZE_BYTES
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.post import SIGNED_FROM, Post
from cablestore.protocol.varint import read_varint


def post_fields(post: Post, dialect: Dialect) -> list[dict[str, Any]]:
    """Return the fields of a post in the order of their bytes. `start` and `end` are offsets in the encoded post."""
    raw = post.raw
    _, links_at = read_varint(raw, SIGNED_FROM)
    type_at = links_at + len(post.links) * HASH_SIZE_BYTES
    _, time_at = read_varint(raw, type_at)
    _, at = read_varint(raw, time_at)
    found = [
        _field("public_key", "user", post.author, 0, KEY_SIZE_BYTES),
        _field("signature", "hex", raw[KEY_SIZE_BYTES:SIGNED_FROM], KEY_SIZE_BYTES, SIGNED_FROM),
        _field("num_links", "number", len(post.links), SIGNED_FROM, links_at),
        _field("links", "hashes", list(post.links), links_at, type_at),
        _field("post_type", "text", post.type_name, type_at, time_at),
        _field("timestamp", "time", post.timestamp_ms, time_at, at),
    ]
    kind = POST_TYPES[post.type]
    for name, field in zip(names_of(kind.body), kind.fields, strict=True):
        value, end = field.read(raw, at, dialect=dialect) if field.is_of_dialect else field.read(raw, at)
        found.append(_field(name.name, _kind(name.name, value), value, at, end))
        at = end
    return [each for each in found if each["start"] < each["end"]]


def _field(name: str, kind: str, value: Any, start: int, end: int) -> dict[str, Any]:
    return {"name": name, "kind": kind, "value": value, "start": start, "end": end}


def _kind(name: str, value: Any) -> str:
    if name == "channel":
        return "channel"
    if name == "recipient":
        return "user"
    if name == "pairs":
        return "pairs"
    if isinstance(value, tuple):
        return "ids"  # recipients may be users or posts
    return "number" if isinstance(value, int) else "text"


def hex_lines(post: Post, fields: list[dict[str, Any]], width: int = 32) -> list[dict[str, Any]]:
    """Return the bytes of a post in lines of `width` bytes: {"offset": of the first byte, "parts": ...}.

    A line is split into parts where a field of `fields` begins. A part contains the index of its field and hex digits.
    """
    lines = []
    for start in range(0, len(post.raw), width):
        stop = min(start + width, len(post.raw))
        parts = [
            {"field": number, "hex": post.raw[max(start, each["start"]) : min(stop, each["end"])].hex(" ")}
            for number, each in enumerate(fields)
            if each["start"] < stop and each["end"] > start
        ]
        lines.append({"offset": start, "parts": parts})
    return lines
