"""Rows of the database, decoded: the parts of a key by the layout of its view, and the value."""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, Final

from cablestore.errors import CableStoreError, CorruptStoreError
from cablestore.index.arrival_log import EventKind
from cablestore.index.packing import unpack
from cablestore.index.reader import PRIVATE_PREFIX
from cablestore.index.view import Catalog, decode_counts, split_latest
from cablestore.protocol.body import TYPE_NAMES
from cablestore.protocol.keys import TYPE_PARTS, is_sort_time, number_in, time_of, unescape

LAYOUTS: Final = {
    b"!acts!action!": ("user time", "packed"),
    b"!acts!block!": ("user time user", "packed"),
    b"!acts!consent!": ("user time", "packed"),
    b"!acts!role!": ("user time", "packed"),
    b"!activity!channel!": ("channel", "counts"),
    b"!activity!day!": ("day", "counts"),
    b"!arrival!log!": ("number", "events"),
    b"!arrival!next": ("", "text"),
    b"!author!": ("user type time", "hash"),
    b"!channel!member!": ("channel user", "moment"),
    b"!channel!members!": ("channel", "number"),
    b"!channel!topic!": ("channel", "moment and text"),
    b"!chat!deleted!": ("hash user", "packed"),
    b"!chat!target!": ("hash", "hex"),
    b"!chat!text!": ("channel time hash", "hash"),
    b"!data!": ("hash", "post"),
    b"!head!": ("channel hash", "bits"),
    b"!link!": ("hash channel hash user", "hex"),
    b"!local!": ("name", "hex"),
    b"!meta": ("", "packed"),
    b"!moderation!about!": ("channel user number id time", "hex"),
    b"!moderation!block!": ("time", "hash"),
    b"!moderation!state!": ("channel time user number", "hash"),
    b"!private!": ("hash", "sealed"),
    b"!reverse!": ("hash", "packed"),
    b"!sizes": ("", "packed"),
    b"!state!member!": ("channel user type time", "hash"),
    b"!state!topic!": ("channel time", "hash"),
    b"!sync!id!": ("set time", "hash"),
    b"!sync!sum!": ("set node", "hex"),
    b"!user!info!": ("user time", "hash"),
    b"!user!latest!info!": ("user", "moment and packed"),
}
"""For each key prefix: the kinds of the parts of the key after it, and the kind of the value.

A key may have fewer parts."""
_PREFIXES: Final = sorted(LAYOUTS)
_NUMBER: Final = struct.Struct(">Q")
_HEAD_BITS: Final = ((1, "stored"), (2, "linked to"), (4, "deleted"))
_TYPES: Final = {part: TYPE_NAMES[number] for number, part in enumerate(TYPE_PARTS) if number in TYPE_NAMES}
_ENTRY_SIZE_BYTES: Final = 33
_DAY_MS: Final = 86_400_000
_ESCAPED: Final = re.compile(r"\\x([0-9a-fA-F]{2})|\\\\|([^\\]+|\\)")


def key_text(key: bytes) -> str:
    r"""Return a key as printable text. Each byte of other characters becomes `\xNN`, and a backslash is doubled."""
    text = key.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else "".join(f"\\x{byte:02x}" for byte in c.encode()) for c in text)


def key_bytes(text: str) -> bytes:
    """Return the key that `key_text` shows. Other backslashes stand for themselves."""
    found = bytearray()
    for match in _ESCAPED.finditer(text):
        found += bytes.fromhex(match[1]) if match[1] else match[2].encode("utf-8", "replace") if match[2] else b"\\"
    return bytes(found)


def is_local(key: bytes) -> bool:
    """Return True for a row that concerns only this store or its user."""
    return key.startswith((b"!local!", PRIVATE_PREFIX, b"!arrival!"))


def decoded_row(catalog: Catalog, key: bytes, value: bytes) -> dict[str, Any]:
    """Return a row with its view, the parts of its key, and its value. A damaged part is shown as it is stored."""
    prefix, kinds, kind = layout_of(key)
    return {
        "view": catalog.view_of(key),
        "key": key_text(key),
        "prefix": key_text(prefix),
        "parts": _parts(key[len(prefix) :], kinds.split()),
        "kind": kind,
        "value": _value(kind, value),
        "size_bytes": len(key) + len(value),
        "is_local": is_local(key),
    }


def layout_of(key: bytes) -> tuple[bytes, str, str]:
    """Return the prefix of a key, the kinds of the parts after it, and the kind of its value."""
    index = bisect_right(_PREFIXES, key) - 1
    if index >= 0 and key.startswith(_PREFIXES[index]):
        return _PREFIXES[index], *LAYOUTS[_PREFIXES[index]]
    return b"!", "", "hex"


def _parts(rest: bytes, kinds: list[str]) -> list[dict[str, Any]]:
    parts = rest.split(b"!") if rest else []
    kinds = kinds + ["part"] * (len(parts) - len(kinds))
    return [_part(kind, part) for kind, part in zip(kinds, parts, strict=False)]


def _part(kind: str, part: bytes) -> dict[str, Any]:
    text = part.decode("utf-8", "backslashreplace")
    try:
        match kind:
            case "channel" | "name":
                text = unescape(part)
            case "time" if is_sort_time(text):
                return {"kind": "time", "text": text, "timestamp_ms": time_of(part)}
            case "day":
                return {"kind": "time", "text": text, "timestamp_ms": number_in(part) * _DAY_MS}
            case "type":
                text = _TYPES.get(part, text)
            case "set":
                names = {b"": "all posts", b'"': "posts without a channel"}
                kind, text = ("part", names[part]) if part in names else ("channel", unescape(part))
    except (CorruptStoreError, UnicodeDecodeError):
        kind = "part"
    return {"kind": kind, "text": text}


def _value(kind: str, value: bytes) -> Any:
    read = _READERS.get(kind)
    try:
        return value if read is None else read(value)
    except (CableStoreError, ValueError, IndexError, struct.error):
        return value  # damaged: shown as bytes, and reported by `check`


def _events(value: bytes) -> list[dict[str, Any]]:
    starts = range(0, len(value), _ENTRY_SIZE_BYTES)
    return [
        {"kind": EventKind(value[at]).name.lower(), "hash": value[at + 1 : at + _ENTRY_SIZE_BYTES]} for at in starts
    ]


_READERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "packed": unpack,
    "counts": lambda value: {TYPE_NAMES[number]: count for number, count in enumerate(decode_counts(value)) if count},
    "number": lambda value: _NUMBER.unpack(value)[0],
    "text": bytes.decode,
    "bits": lambda value: [word for bit, word in _HEAD_BITS if value[0] & bit],
    "moment": lambda value: {"timestamp_ms": _NUMBER.unpack_from(value)[0], "hash": value[8:40]},
    "moment and text": lambda value: {"hash": split_latest(value)[0], "text": split_latest(value)[1].decode()},
    "moment and packed": lambda value: {"hash": split_latest(value)[0], "values": unpack(split_latest(value)[1])},
    "events": _events,
}
"""Decoders of values by the kind of the value. Values of other kinds are shown as bytes."""
