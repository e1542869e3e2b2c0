"""Fields of post bodies: how each is read, written and checked (wire.md 6.2, moderation.md 5.1).

A reader accepts a buffer and an offset, and returns the value and the offset after it. It raises DecodeError. A check
raises ArgumentError for a value of the wrong Python type. Sizes are checked when bytes are read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from cablestore import limits
from cablestore.arguments import check_bytes, check_id, check_instance, check_text, checked_each
from cablestore.errors import DecodeError
from cablestore.protocol.crypto import KEY_SIZE_BYTES
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.fields import (
    as_text,
    counted,
    not_utf8,
    read_choice,
    read_hashes,
    read_sized,
    read_text,
    sized,
)
from cablestore.protocol.varint import encode_varint, read_varint

_Pairs = tuple[tuple[str, bytes], ...]

Reader = Callable[..., tuple[Any, int]]
Writer = Callable[..., bytes]


class Field(NamedTuple):
    """A field of a body."""

    read: Reader
    write: Writer
    check: Callable[[str, Any], object]
    """Function that checks a value, given its name for error messages."""
    is_of_dialect: bool = False
    """True if dialects write the field differently. `read` and `write` then accept `dialect` too."""


def _text(what: str, least: int, most: int) -> Field:
    return Field(partial(read_text, what=what, least=least, most=most), _write_text, check_text)


def _choice(what: str, most: int) -> Field:
    return Field(partial(read_choice, what=what, most=most), encode_varint, _check_number)


def _write_text(text: str) -> bytes:
    return sized(text.encode())


def _check_number(name: str, value: object) -> None:
    check_instance(name, value, int)


def _read_message(buffer: bytes, at: int) -> tuple[str, int]:
    data, end = read_sized(buffer, at, "text")
    if len(data) > limits.MAX_TEXT_SIZE_BYTES:
        raise DecodeError(at, f"the text has {len(data)} bytes, the maximum is {limits.MAX_TEXT_SIZE_BYTES}")
    try:
        return data.decode(), end
    except UnicodeDecodeError as error:
        raise not_utf8(error, at, "text") from None


# --- hashes and keys -----------------------------------------------------------------------------


def _read_recipient(buffer: bytes, at: int) -> tuple[bytes, int]:
    recipient = buffer[at : at + KEY_SIZE_BYTES]
    if len(recipient) != KEY_SIZE_BYTES:
        raise DecodeError(at, f"the recipient is truncated: it has {len(recipient)} bytes, expected {KEY_SIZE_BYTES}")
    return recipient, at + KEY_SIZE_BYTES


def _read_users(buffer: bytes, at: int) -> tuple[tuple[bytes, ...], int]:
    recipients, end = read_hashes(buffer, at, "recipients")
    if not 1 <= len(recipients) <= limits.MAX_RECIPIENTS:
        raise DecodeError(at, f"the post has {len(recipients)} recipients, expected 1 to {limits.MAX_RECIPIENTS}")
    return recipients, end


def _check_hashes(name: str, values: Any) -> None:
    checked_each(name, values, check_id)


# --- pairs of post/info: the only field that the dialects write differently ------------------------


def _read_pairs(buffer: bytes, at: int, dialect: Dialect) -> tuple[_Pairs, int]:
    pairs: list[tuple[str, bytes]] = []
    if dialect.info_is_counted:
        count, at = read_varint(buffer, at)
        if count > len(buffer) - at:
            raise DecodeError(
                at, f"the list of pairs is truncated: its length is {count}, but only {len(buffer) - at} bytes remain"
            )
        for _ in range(count):
            pair, at = _read_pair(buffer, at)
            pairs.append(pair)
        return tuple(pairs), at
    while True:
        size, after_size = read_varint(buffer, at)
        if size == 0:
            return tuple(pairs), after_size
        pair, at = _read_pair(buffer, at)
        pairs.append(pair)


def _read_pair(buffer: bytes, at: int) -> tuple[tuple[str, bytes], int]:
    key, at = read_text(buffer, at, "info key", 1, limits.MAX_INFO_KEY_CODEPOINTS)
    value, end = read_sized(buffer, at, "info value")
    if len(value) > limits.MAX_INFO_VALUE_SIZE_BYTES:
        raise DecodeError(
            at, f"the info value has {len(value)} bytes, the maximum is {limits.MAX_INFO_VALUE_SIZE_BYTES}"
        )
    if key == "name":
        _check_name(value, at)
    elif key == "accept-role" and read_varint(buffer, end - len(value))[1] != end:
        raise DecodeError(at, "the value of accept-role must be exactly one varint")
    return (key, value), end


def _check_name(value: bytes, at: int) -> None:
    size = len(as_text(value, at, "user name"))
    if not 1 <= size <= limits.MAX_USER_NAME_CODEPOINTS:
        raise DecodeError(at, f"the user name has {size} code points, expected 1 to {limits.MAX_USER_NAME_CODEPOINTS}")


def _write_pairs(pairs: _Pairs, dialect: Dialect) -> bytes:
    data = b"".join([sized(key.encode()) + sized(value) for key, value in pairs])
    return encode_varint(len(pairs)) + data if dialect.info_is_counted else data + b"\x00"


def _check_pairs(name: str, pairs: Any) -> None:
    for pair in pairs:
        check_text(f"{name} (a key)", pair[0])
        check_bytes(f"{name} (a value)", pair[1])


CHANNEL: Final = _text("channel name", 1, limits.MAX_CHANNEL_CODEPOINTS)
CONTEXT: Final = _text("channel name", 0, limits.MAX_CHANNEL_CODEPOINTS)
"""Channel of a moderation action. An empty name stands for the whole cabal."""
TEXT_LINE: Final = Field(_read_message, _write_text, check_text)
TOPIC_LINE: Final = _text("topic", 0, limits.MAX_TOPIC_CODEPOINTS)
HASHES: Final = Field(partial(read_hashes, what="deletions"), counted, _check_hashes)
PAIRS: Final = Field(_read_pairs, _write_pairs, _check_pairs, is_of_dialect=True)
REASON: Final = _text("reason", 0, limits.MAX_REASON_CODEPOINTS)
PRIVACY: Final = _choice("privacy", 1)
RECIPIENT: Final = Field(_read_recipient, bytes, check_id)
RECIPIENTS: Final = Field(partial(read_hashes, what="recipients"), counted, _check_hashes)
USERS: Final = Field(_read_users, counted, _check_hashes)
USER_ROLE: Final = _choice("role", 2)
ACTION: Final = _choice("action", 7)
DROP_FLAG: Final = _choice("drop flag", 1)
NOTIFY_FLAG: Final = _choice("notify flag", 1)
UNDROP_FLAG: Final = _choice("undrop flag", 1)
