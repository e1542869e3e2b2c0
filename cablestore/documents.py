"""JSON documents with declared fields: decode them with readable errors, and verify the checksum of a manifest.

Types are declared for msgspec. A document that does not match raises ValueError. The message contains the field and the
problem.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import blake3
import msgspec

T = TypeVar("T")

_NAMES: Final = {"int": "whole number", "float": "number", "str": "string", "bool": "boolean", "|": "or"}
"""JSON terms that replace the type names in msgspec's messages."""
_SHOWN_CHARACTERS: Final = 160


def read_document(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Decode a JSON document to a value of this type."""
    with _in_words():
        return msgspec.json.decode(data, type=kind)


def as_declared(fields: Any, kind: type[T]) -> T:
    """Convert a part of a document, as returned by `json.loads`, to a value of this type."""
    with _in_words():
        return msgspec.convert(fields, kind)


def with_checksum(fields: dict[str, Any]) -> bytes:
    """Return the bytes of a manifest: its fields as JSON, with their BLAKE3 checksum."""
    return _json(fields | {"blake3": _checksum(fields)})


def read_checked(data: bytes) -> dict[str, Any]:
    """Return the fields of a manifest without its checksum. Raises ValueError if the checksum does not match."""
    fields = read_document(data, dict[str, Any])
    claimed = fields.pop("blake3", None)
    with _in_words():
        is_sound = claimed == _checksum(fields)
    if not is_sound:
        raise ValueError("its BLAKE3 checksum does not match its content")
    return fields


def _checksum(fields: dict[str, Any]) -> str:
    return blake3.blake3(_json(fields)).hexdigest()


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, indent=1).encode() + b"\n"


@contextmanager
def _in_words() -> Iterator[None]:
    """Convert errors of the body to a ValueError such as `segments[0].items: expected whole number, got string`."""
    try:
        yield
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        printable = "".join(character if character.isprintable() else "?" for character in str(error))
        what, _, where = printable.rpartition(" - at `$")
        parts = (what or where)[:_SHOWN_CHARACTERS].split("`")
        parts[1::2] = [" ".join(_NAMES.get(word, word) for word in named.split()) for named in parts[1::2]]
        said = "".join(parts)
        if said[1:2].islower():  # a message that does not come from the JSON parser
            said = said[0].lower() + said[1:]
        raise ValueError(f"{where.strip('.`')}: {said}" if what else said) from None
