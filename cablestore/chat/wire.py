"""What a client and the process that has the store open say to each other: calls of `Cabal` and news, as bytes.

Each frame is the length of what follows in 4 bytes, big-endian, then an array in msgpack:

    client   [number, name, [argument, ...], deadline]
    server   [TOLD, state, news, seen]              what is new, by itself
             [RESULT, number, value, sequence]
             [PROBLEM, number, text, is_storage]    an error; number 0 is for a frame that is no call

The deadline is a time of `time.monotonic`, which all processes share. A call that is read later is not run: the client
has given it up.

A call without a name has an error at once, whatever the store does: so a client sees that the server does not hang.

Values are texts, bytes, whole numbers and arrays; an object is an array of its fields. The types of `Cabal` say how they
are read, so that nothing else comes out of a frame than what they allow. The names that can be called are in `CALLS`.

Raise VERSION with each change of a call, of a value's fields, or of the frames.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import IntEnum
from functools import cache, partial
from struct import Struct
from types import NoneType, UnionType
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgpack

from cablestore.chat.cabal import Cabal, CabalNews
from cablestore.errors import CableStoreError

VERSION: Final = 5
TOLD: Final = 0
RESULT: Final = 1
PROBLEM: Final = 2
SIGN_OF_LIFE: Final = ("", (), 0.0)
"""Name, arguments and deadline of the call that only asks for a sign of life."""
MAX_FRAME_SIZE_BYTES: Final = 268_435_456
"""A frame of the server: a page of the longest messages has 5 MB, a list of a million channels 100 MB."""
_LENGTH: Final = Struct(">I")
_ATOMS: Final = (str, bytes, int, bool)

Read = Callable[[Any], Any]
"""Function that returns a value of a type, given what a frame has. Raises ValueError for anything else."""


@dataclass(frozen=True, slots=True)
class CabalState:
    """State of a cabal that a client shows without asking: see the properties of `Cabal` with these names."""

    own_key: bytes
    connection: str
    is_connected: bool
    listening: list[str]


class StoreConnection(NamedTuple):
    """Connection to the process that has a store open, and the name of its command: `serve` or `chat`."""

    connection: socket.socket
    owner: str


# --- values ---------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Return a value as a frame has it."""
    if value is None or type(value) in _ATOMS:
        return value
    if isinstance(value, IntEnum):
        return int(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if is_dataclass(value):
        return [plain(getattr(value, each.name)) for each in fields(value)]
    return [plain(item) for item in value]


@cache
def reader_of(kind: Any) -> Read:
    """Return the function that reads values of a type."""
    arguments = get_args(kind)
    if arguments:
        return _GENERIC[get_origin(kind)](*arguments)
    if kind in _ATOMS or kind in (None, NoneType):
        return _atom_reader(kind)
    if issubclass(kind, IntEnum):
        return lambda found: kind(found) if type(found) is int else _refuse(kind, found)
    hints = get_type_hints(kind)
    names = [each.name for each in fields(kind)] if is_dataclass(kind) else kind._fields
    return _fields_reader(kind, *(hints[name] for name in names))


def _refuse(kind: Any, found: Any) -> Any:
    raise ValueError(f"{str(found)[:40]!r} is no {getattr(kind, '__name__', kind)}")


def _atom_reader(kind: Any) -> Read:
    expected = NoneType if kind is None else kind
    return lambda found: found if type(found) is expected else _refuse(expected, found)


def _one_of_reader(*words: str) -> Read:
    return lambda found: found if isinstance(found, str) and found in words else _refuse(" or ".join(words), found)


def _optional_reader(kind: Any, _: None) -> Read:
    read = reader_of(kind)
    return lambda found: None if found is None else read(found)


def _items_reader(make: Callable[[list[Any]], Any], item: Any) -> Read:
    read = reader_of(item)
    return lambda found: make([read(each) for each in found]) if isinstance(found, list) else _refuse(make, found)


def _tuple_reader(*kinds: Any) -> Read:
    is_long = kinds[-1] is Ellipsis
    return _items_reader(tuple, kinds[0]) if is_long else _fields_reader(lambda *values: values, *kinds)


def _dict_reader(key: Any, item: Any) -> Read:
    read_key, read = reader_of(key), reader_of(item)

    def read_all(found: Any) -> dict[Any, Any]:
        pairs = found.items() if isinstance(found, dict) else _refuse(dict, found)
        return {read_key(each): read(value) for each, value in pairs}

    return read_all


def _fields_reader(make: Callable[..., Any], *kinds: Any) -> Read:
    readers = [reader_of(kind) for kind in kinds]

    def read(found: Any) -> Any:
        if not isinstance(found, list) or len(found) != len(readers):
            _refuse(make, found)
        return make(*[each(value) for each, value in zip(readers, found, strict=True)])

    return read


_GENERIC: Final[dict[Any, Callable[..., Read]]] = {
    Literal: _one_of_reader,
    Sequence: partial(_items_reader, list),
    UnionType: _optional_reader,
    dict: _dict_reader,
    frozenset: partial(_items_reader, frozenset),
    list: partial(_items_reader, list),
    tuple: _tuple_reader,
}
"""Functions that make the reader of a type with arguments, by what it is."""

READ_STATE: Final = reader_of(CabalState)
READ_NEWS: Final = reader_of(CabalNews)


# --- calls ----------------------------------------------------------------------------------------


class CabalCall:
    """A method of `Cabal`: its name, the arguments on the wire, and how its result is read."""

    def __init__(self, method: Callable[..., Any]) -> None:
        hints = get_type_hints(method)
        self.name: Final = method.__name__
        self.read_result: Final = reader_of(hints.pop("return"))
        self._signature = inspect.signature(method)
        self._readers = {name: reader_of(hint) for name, hint in hints.items()}

    def write(self, args: Sequence[Any], more: Mapping[str, Any]) -> list[Any]:
        """Return the arguments of a call, as a frame has them."""
        bound = self._signature.bind(None, *args, **more)
        bound.apply_defaults()
        return [plain(bound.arguments[name]) for name in self._readers]

    def read(self, given: Any) -> dict[str, Any]:
        """Return the arguments of a call by name. Raises ValueError for what the types do not allow."""
        if not isinstance(given, list) or len(given) != len(self._readers):
            _refuse(f"list of {len(self._readers)} arguments", given)
        return {name: read(value) for (name, read), value in zip(self._readers.items(), given, strict=True)}


CALLS: Final = {
    method.__name__: CabalCall(method)
    for method in (
        Cabal.page,
        Cabal.channels,
        Cabal.members,
        Cabal.details,
        Cabal.latest_mentions,
        Cabal.read_state,
        Cabal.search,
        Cabal.own_name,
        Cabal.users_named,
        Cabal.user_details,
        Cabal.restrictions,
        Cabal.text,
        Cabal.mark_seen,
        Cabal.draft,
        Cabal.set_draft,
        Cabal.mute,
        Cabal.unmute,
        Cabal.join,
        Cabal.leave,
        Cabal.topic,
        Cabal.set_name,
        Cabal.delete,
        Cabal.moderate,
        Cabal.invitation,
    )
}
"""All that a client can call, by name."""


# --- frames ---------------------------------------------------------------------------------------


def frame(values: list[Any], max_size_bytes: int) -> bytes:
    """Return a frame. Raises CableStoreError if it is too large, or has a number or a text that cannot be sent."""
    try:
        body: bytes = msgpack.packb(values)
    except OverflowError:
        raise CableStoreError("a number in it has more than 64 bits") from None
    except UnicodeEncodeError as error:
        raise CableStoreError(f"{error.object!r:.40} is no text: it has half a character") from None
    if len(body) > max_size_bytes:
        raise CableStoreError(
            f"it has {len(body):,} bytes, and {max_size_bytes:,} is the maximum between a client and the process that "
            "has the store open"
        )
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader, max_size_bytes: int) -> list[Any]:
    """Read a frame. Raises ConnectionError if the other process is gone, ValueError for what is no frame."""
    try:
        [size] = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if size > max_size_bytes:
            raise ValueError(f"a frame has {size:,} bytes, the maximum is {max_size_bytes:,}")
        body = await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        raise ConnectionAbortedError("the other process is gone") from None
    try:
        found = msgpack.unpackb(body)
    except (ValueError, TypeError) as error:
        raise ValueError(f"a frame is no msgpack: {error}") from None
    if not isinstance(found, list) or not found:
        raise ValueError(f"a frame is no array: {str(found)[:40]!r}")
    return found
