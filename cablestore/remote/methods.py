"""Methods of a store that other processes can call, and the encoding of their arguments and results.

Other processes can call the public methods and properties of `CableStore`, `CableStore.moderation` and
`CableStore.local`, except those in OWNER_ONLY. They can also call the FUNCTIONS on a store, and the methods of the node
that connects it to peers. A snapshot has the methods of `Queries`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache
from importlib import import_module
from types import GenericAlias
from typing import Any, Final, NoReturn, get_args, get_origin

import msgspec

from cablestore import arguments
from cablestore.errors import ArgumentError, CableStoreError
from cablestore.extras import naming_extras
from cablestore.plurals import counted
from cablestore.protocol.dialect import Dialect
from cablestore.remote.codec import Codec, codec_of, hints_of
from cablestore.remote.node import WatchedNode
from cablestore.store.local_values import LocalValues
from cablestore.store.moderator import Moderator
from cablestore.store.queries import Queries
from cablestore.store.store import CableStore

SPACES: Final[dict[str, type]] = {
    "": CableStore,
    "moderation": Moderator,
    "local": LocalValues,
    "node": WatchedNode,
}
"""Classes whose methods can be called, by the prefix of the method's name."""

_KEY: Final = "private keys stay in the process that has the store open"
_NODE: Final = "only the process that runs the node can report this"
_OBJECT: Final = "it works on objects that exist only in the process that has the store open"
OWNER_ONLY: Final = {
    "open": "it opens a store",
    "in_memory": "it opens a store",
    "identity": _KEY,
    "import_identity": _KEY,
    "moderation.decisions": _OBJECT,
    "moderation.position": _OBJECT,
    "moderation.since": _OBJECT,
    "node.change": _NODE,
    "node.set": _NODE,
}
"""Public names that other processes cannot use, and the reason."""
OF_PROGRAM: Final = frozenset({
    "close",
    "dialect",
    "is_closed",
    "is_read_only",
    "last_sequence",
    "local.get_json",
    "local.put_json",
    "node.watch",
    "path",
    "snapshot",
    "watch",
    "write_state",
})  # fmt: skip
"""Public names that the program's side implements itself, from other calls and reported states."""


_READS: Final = frozenset({
    "changes",
    "check",
    "clock_difference",
    "next_changes",
    "public_key",
    "stats",
})  # fmt: skip
"""Public names outside `Queries` that do not write."""


FUNCTIONS: Final = {
    "backup_open": "cablestore.backup.write",
    "channel_status": "cablestore.sds.posts",
    "checkpoint_open": "cablestore.remote.checkpoint",
    "has_kept": "cablestore.archive.importer",
    "import_archive": "cablestore.archive.importer",
    "log_place": "cablestore.archive.importer",
    "store_deletions": "cablestore.archive.importer",
}
"""Functions on an open store that other processes can call, and their modules, which are in higher layers."""


_IMPORTED_LATE: Final = (
    "cablestore.export.exporter",
    "cablestore.index.parallel",
    "cablestore.search.table",
    "cablestore.store.importing",
    "cablestore.store.touched",
)
"""Modules that methods of a store import when they are called."""


def load_functions() -> None:
    """Import the modules of the FUNCTIONS and of the methods early.

    A later import may find the files of another version, or fail because no descriptor is free.
    """
    for module in (*FUNCTIONS.values(), *_IMPORTED_LATE):
        with suppress(Exception):  # a call imports it again and reports the missing extra
            import_module(module)


def public(kind: type) -> list[str]:
    """Return the names of the public methods and properties of the class `kind`."""
    return [name for name in dir(kind) if not name.startswith("_")]


@cache
def names() -> frozenset[str]:
    """Return the names that can be called in the process that has the store open."""
    found = {f"{space}.{name}" if space else name for space, kind in SPACES.items() for name in public(kind)}
    return frozenset(found - OWNER_ONLY.keys() - OF_PROGRAM)


class RemoteMethod:
    """Method or property that can be called remotely, with the codecs of its arguments and result."""

    def __init__(self, name: str, dialect: Dialect) -> None:
        space, _, self.name = name.rpartition(".")
        self.function: Final = _function(name) if name in FUNCTIONS else None
        """Function on a store, None for a method."""
        member = self.function or inspect.getattr_static(SPACES[space], self.name)
        self.is_property: Final = isinstance(member, property)
        self.is_of_snapshot: Final = hasattr(Queries, self.name) and not space
        self.is_read: Final = self.is_of_snapshot or name in _READS
        function: Any = member.fget if isinstance(member, property) else member
        hints = hints_of(function)
        result = hints.pop("return")
        self.is_iterator: Final = get_origin(result) is Iterator
        self.result: Final = codec_of(GenericAlias(list, get_args(result)) if self.is_iterator else result, dialect)
        signature = inspect.signature(function)
        self.has_progress: Final = "progress" in signature.parameters
        parameters = list(signature.parameters.values())[1:]
        self._signature: Final = signature.replace(parameters=parameters)
        self._names: Final = [each.name for each in parameters if each.name != "progress"]
        self._options: Final = [each.name for each in parameters if each.kind is each.VAR_KEYWORD]
        kinds = [get_args(hints[name])[0] if name in self._options else hints[name] for name in self._names]
        self._arguments: Final = codec_of(GenericAlias(tuple, tuple(kinds)), dialect) if kinds else Codec(tuple[()])

    def bind(self, args: tuple[Any, ...], more: Mapping[str, Any]) -> dict[str, Any]:
        """Return by name the positional arguments `args` and the named arguments `more` of a call.

        Raises TypeError if the signature does not accept them.
        """
        given = self._signature.bind(*args, **more)
        given.apply_defaults()
        return given.arguments

    def write(self, given: Mapping[str, Any]) -> msgspec.Raw:
        """Encode the arguments `given`, by name, for a Call message. Raises ArgumentError if one cannot be encoded."""
        values = [
            arguments.checked_time(name, value) if name.endswith("_ms") and isinstance(value, datetime) else value
            for name, value in ((name, given[name]) for name in self._names)
        ]
        try:
            return msgspec.Raw(self._arguments.encode(values))
        except CableStoreError:
            raise
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            _reject(given, error)

    def read(self, raw: msgspec.Raw) -> dict[str, Any]:
        """Decode the arguments of a Call message. Return them by name.

        Arguments of wrong types are returned unconverted: the method then raises the same error as for a caller in its
        process.
        """
        try:
            values = self._arguments.decode(raw)
        except ValueError:
            values = _plain(raw)
        if not isinstance(values, list | tuple) or len(values) != len(self._names):
            raise ArgumentError(f"invalid call of {self.name}: expected {counted(len(self._names), 'argument')}")
        found = dict(zip(self._names, values, strict=True))
        for name in self._options:
            options = found.pop(name)
            if not isinstance(options, dict) or not all(isinstance(key, str) for key in options):
                raise ArgumentError(f"invalid call of {self.name}: expected options by name")
            found.update(options)
        return found


@cache
def method_of(name: str, dialect: Dialect) -> RemoteMethod:
    """Return a method by name, such as `moderation.hide`. Raises CableStoreError for unknown names."""
    if name not in names() and name not in FUNCTIONS:
        raise CableStoreError(f"unknown method {name[:40]!r}. Run the same version of cablestore in both processes")
    return RemoteMethod(name, dialect)


def _function(name: str) -> Any:
    with naming_extras("the process that has the store open needs"):
        return getattr(import_module(FUNCTIONS[name]), name)


def _plain(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.msgpack.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, TypeError) as error:
        raise ArgumentError(f"invalid arguments: {error}") from None


def _reject(given: Mapping[str, Any], error: Exception) -> NoReturn:
    """Raise ArgumentError for the first argument in `given` that has a wrong type or value. `error` is the cause."""
    for name, value in given.items():
        if arguments.is_checked(name):
            arguments.check_given(**{name: value})
    raise ArgumentError(f"invalid argument: {error}") from None
