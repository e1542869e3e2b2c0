"""Forms of local rows, which cannot be derived from other data. A check reports damaged rows, and a rebuild omits them.

Rows that the store recreates itself (marks of rules and searches) and rows of free content (drafts, values) have no
form here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from cablestore.errors import CorruptStoreError
from cablestore.index import local
from cablestore.index.consents import decode_consent
from cablestore.index.drops import decode_drop, decode_dropped
from cablestore.index.packing import unpack
from cablestore.protocol.crypto import HASH_SIZE_BYTES, KEY_SIZE_BYTES

_HEX: Final = rb"[0-9a-f]{64}"
_PART: Final = rb"[^!]*"
_SORT_TIME: Final = rb"[0-9]{16}\.[0-9a-f]{32}"
_NAMED_SIZE_BYTES: Final = HASH_SIZE_BYTES + KEY_SIZE_BYTES
_HEAD_OF_ACT_SIZE_BYTES: Final = KEY_SIZE_BYTES + 8 + 4


def is_damaged(key: bytes, value: bytes) -> bool:
    """Return True if a local row does not have the form for its name, False for a name without a form.

    `key` is the whole key.
    """
    name, _, rest = key[len(local.PREFIX) :].partition(b"!")
    if name not in _FORMS:
        return False
    key_form, is_value = _FORMS[name]
    try:
        return re.fullmatch(key_form, rest) is None or not is_value(key, value)
    except CorruptStoreError:
        return True


def _has_size(size_bytes: int) -> Callable[[bytes, bytes], bool]:
    return lambda _, value: len(value) == size_bytes


def _is_drop(key: bytes, value: bytes) -> bool:
    return bool(decode_drop(key, value))


def _is_dropped(key: bytes, value: bytes) -> bool:
    return bool(decode_dropped(key[len(local.local_key(local.DROPPED)) :], value))


def _is_consent(key: bytes, value: bytes) -> bool:
    return bool(decode_consent((key, value)))


def _is_seed(_: bytes, value: bytes) -> bool:
    match unpack(value):
        case [bytes(), int(), int() | None, *kept]:
            return all(isinstance(digest, bytes) for digest in kept)
    return False


def _is_act(_: bytes, value: bytes) -> bool:
    targets = int.from_bytes(value[_HEAD_OF_ACT_SIZE_BYTES - 4 : _HEAD_OF_ACT_SIZE_BYTES])
    match unpack(value[_HEAD_OF_ACT_SIZE_BYTES + targets * HASH_SIZE_BYTES :]):
        case [bytes(), int(), int(), str() | None, str(), bool()]:
            return True
    return False


def _is_mark(_: bytes, value: bytes) -> bool:
    match unpack(value):
        case [bytes() as place, int()]:
            return re.fullmatch(rb"(%b)?" % _SORT_TIME, place) is not None
    return False


def _is_list_of_keys(_: bytes, value: bytes) -> bool:
    keys: Any = unpack(value)
    return isinstance(keys, list) and all(isinstance(key, bytes) for key in keys)


_FORMS: Final[dict[bytes, tuple[bytes, Callable[[bytes, bytes], bool]]]] = {
    local.CONFIRMED: (_HEX, _has_size(KEY_SIZE_BYTES)),
    local.DROP: (rb"user!%b|channel!%b|post!%b" % (_HEX, _PART, _HEX), _is_drop),
    local.DROPPED: (_HEX, _is_dropped),
    local.DROPPED_LINK: (rb"%b!%b!%b" % (_PART, _HEX, _HEX), _has_size(0)),
    local.DROPPED_HEAD: (rb"%b!%b" % (_PART, _HEX), _has_size(0)),
    local.CONSENT: (rb"%b!%b" % (_HEX, _SORT_TIME), _is_consent),
    local.ACT: (rb"%b!%b" % (_HEX, _SORT_TIME), _is_act),
    local.SEED: (b"", _is_seed),
    local.READ: (_PART, _is_mark),
    local.LATE: (rb"%b!%b" % (_PART, _SORT_TIME), _has_size(_NAMED_SIZE_BYTES)),
    local.MENTION: (_SORT_TIME, _has_size(_NAMED_SIZE_BYTES)),
    local.MENTION_IN: (rb"%b!%b" % (_PART, _SORT_TIME), _has_size(_NAMED_SIZE_BYTES)),
    local.TOUCHED: (rb"[0-9]{16}", _is_list_of_keys),
}
"""For each name: a pattern for the part of the key after the name, and a function that checks the whole key and the
value.
"""
