"""Readable representations of values: hashes and keys in hex, without secrets.

A dataclass or a NamedTuple uses `hex_repr` as its `__repr__`.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final

_HASH_SIZE_BYTES: Final = 32
"""Size of hashes and public keys, which are shown in full so that they can be copied."""
_NAME_DIGITS: Final = 8


def hex_repr(value: Any) -> str:
    """Return the class and fields of a dataclass or a NamedTuple. Fields with `repr=False` are omitted.

    A user without a name has its public key as name. If the value also contains the key, that name is shortened to the
    first digits.
    """
    names = [each.name for each in fields(value) if each.repr] if is_dataclass(value) else value._fields
    held = {name: getattr(value, name) for name in names}
    keys = {each.hex() for each in held.values() if isinstance(each, bytes)}
    shown = (f"{name}={_shown(_short(each, keys))}" for name, each in held.items())
    return f"{type(value).__name__}({', '.join(shown)})"


def _short(value: Any, keys: AbstractSet[str]) -> Any:
    return value[:_NAME_DIGITS] if isinstance(value, str) and value in keys else value


def _shown(value: Any) -> str:
    """Return a value as text. Values in tuples, lists, sets and mappings are formatted recursively."""
    if isinstance(value, bytes | bytearray):
        return _hex(bytes(value))
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_shown(key)}: {_shown(each)}' for key, each in value.items())}}}"
    if type(value) is tuple or isinstance(value, list | AbstractSet):
        opened, closed = {tuple: ("(", ",)" if len(value) == 1 else ")"), list: "[]"}.get(type(value), "{}")
        return f"{opened}{', '.join(map(_shown, value))}{closed}"
    return repr(value)


def _hex(value: bytes) -> str:
    """Return bytes in hex, truncated if they are long. Short printable ASCII is returned as text."""
    if len(value) < _HASH_SIZE_BYTES and value.isascii() and value.decode().isprintable():
        return repr(value)
    digits = value[:_HASH_SIZE_BYTES].hex()
    return digits if len(value) <= _HASH_SIZE_BYTES else f"{digits}... ({len(value):,} bytes)"
