"""Local values of the store's user, which never leave the machine: drafts, muted channels, values of clients.

They are local rows (`cablestore.index.local`). A rebuild, a reindexing and `generations --back-to` preserve them;
exports and peers never receive them. Each change is an entry of the arrival log, so `CableStore.changes` reports it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cablestore import limits
from cablestore.arguments import check
from cablestore.errors import ArgumentError
from cablestore.index.database import Row
from cablestore.index.engine import Engine
from cablestore.index.local import DRAFT, MUTED, VALUE, local_key
from cablestore.protocol.keys import escape, unescape


class LocalValues:
    """Local values of the store's user. Use `CableStore.local`.

    A value has a name, which identifies its kind, and a key under that name. Both are strings of at most
    `limits.MAX_LOCAL_NAME_SIZE_BYTES` bytes in UTF-8. Values have at most `limits.MAX_LOCAL_VALUE_SIZE_BYTES` bytes.
    Larger names, keys and values raise ArgumentError.

    Each call of a method that writes is one atomic write. With `sync`, the value is on disk when the call returns.
    """

    def __init__(self, engine: Engine) -> None:
        """Use `CableStore.local`."""
        self._engine = engine

    # --- values of clients ---------------------------------------------------------------------

    def get(self, name: str, key: str = "") -> bytes | None:
        """Return the value, or None if it is missing."""
        return self._get(VALUE, _value_key(name, key))

    def put(self, name: str, key: str, value: bytes, *, sync: bool = False) -> None:
        """Store a value, and replace an earlier value."""
        check(value=value)
        self._set(VALUE, _value_key(name, key), value, sync=sync)

    def delete(self, name: str, key: str = "", *, sync: bool = False) -> None:
        """Delete a value. A missing value is not an error."""
        self._set(VALUE, _value_key(name, key), None, sync=sync)

    def items(self, name: str) -> Iterator[tuple[str, bytes]]:
        """Yield (key, value) of each value under a name, sorted by the bytes of the keys."""
        return self._items(_value_key(name, ""))

    def _items(self, prefix: bytes) -> Iterator[tuple[str, bytes]]:
        for key, value in self._rows(VALUE, prefix):
            yield unescape(key[len(prefix) :]), value

    def get_json(self, name: str, key: str = "") -> Any:
        """Return a value that `put_json` stored, or None if it is missing.

        Raises ArgumentError if the value is not JSON, or is nested too deeply for Python's parser.
        """
        value = self.get(name, key)
        try:
            return None if value is None else json.loads(value)
        except (ValueError, RecursionError):
            raise ArgumentError(
                f"the value of {name!r}, {key!r} is not JSON, or is nested too deeply. Read it with `get`"
            ) from None

    def put_json(self, name: str, key: str, value: Any, *, sync: bool = False) -> None:
        """Store a value as JSON. Raises ArgumentError if JSON cannot represent it."""
        check(name=name, key=key, sync=sync)
        try:
            encoded = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ArgumentError(f"cannot encode the value of {name!r}, {key!r} as JSON: {error}") from None
        self.put(name, key, encoded, sync=sync)

    # --- values that all clients share ---------------------------------------------------------

    def draft(self, channel: str) -> str:
        """Return the draft for a channel, or "" without a draft."""
        return (self._get(DRAFT, self._channel_key(channel)) or b"").decode(errors="replace")

    def set_draft(self, channel: str, text: str, *, sync: bool = False) -> None:
        """Store the draft for a channel; "" removes it."""
        check(text=text)
        self._set(DRAFT, self._channel_key(channel), _utf8(text, "draft") or None, sync=sync)

    def drafts(self) -> Iterator[tuple[str, str]]:
        """Yield (channel, draft) for every draft."""
        for key, value in self._rows(DRAFT):
            yield unescape(key), value.decode(errors="replace")

    def is_muted(self, channel: str) -> bool:
        """Return True if the user muted a channel."""
        return self._get(MUTED, self._channel_key(channel)) is not None

    def mute(self, channel: str, *, sync: bool = False) -> None:
        """Mute a channel. Clients decide how they treat muted channels."""
        self._set(MUTED, self._channel_key(channel), b"", sync=sync)

    def unmute(self, channel: str, *, sync: bool = False) -> None:
        """Undo `mute`."""
        self._set(MUTED, self._channel_key(channel), None, sync=sync)

    def muted(self) -> Iterator[str]:
        """Yield the names of the muted channels."""
        for key, _ in self._rows(MUTED):
            yield unescape(key)

    # --- rows ----------------------------------------------------------------------------------

    def _channel_key(self, channel: str) -> bytes:
        check(channel=channel)
        _utf8(channel, "channel")  # first, for an error that names the argument
        return _part(self._engine.dialect.channel_id(channel), "channel")

    def _get(self, row_name: bytes, key: bytes) -> bytes | None:
        with self._engine.reading() as reader:
            return reader.local(row_name, key)

    def _rows(self, row_name: bytes, prefix: bytes = b"") -> Iterator[Row]:
        """Yield (key without the name, value) of the rows under a name whose keys begin with `prefix`."""
        start = len(local_key(row_name))
        with self._engine.reading() as reader:
            for key, value in reader.prefix(local_key(row_name, prefix)):
                yield key[start:], value

    def _set(self, row_name: bytes, key: bytes, value: bytes | None, *, sync: bool) -> None:
        check(sync=sync)
        if value is not None and len(value) > limits.MAX_LOCAL_VALUE_SIZE_BYTES:
            raise ArgumentError(
                f"value too large: {len(value):,} bytes, the maximum is {limits.MAX_LOCAL_VALUE_SIZE_BYTES:,}"
            )
        with self._engine.transaction() as transaction:
            plan = transaction.plan()
            plan.set_local(row_name, key, value, noted=True)
            transaction.commit(plan.finish(), sync=sync)


def _value_key(name: str, key: str) -> bytes:
    check(name=name, key=key)
    if not name:
        raise ArgumentError("the name of a local value is empty. Pass a name, such as the name of your client")
    return _part(name, "name") + b"!" + _part(key, "key")


def _part(text: str, what: str) -> bytes:
    """Escape a string as a part of a key. Raises ArgumentError if it is too long or cannot be encoded."""
    size_bytes = len(_utf8(text, what))
    if size_bytes > limits.MAX_LOCAL_NAME_SIZE_BYTES:
        raise ArgumentError(f"{what} too long: {size_bytes} bytes, the maximum is {limits.MAX_LOCAL_NAME_SIZE_BYTES}")
    return escape(text)


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ArgumentError(f"the {what} {text[:80]!r} cannot be encoded in UTF-8") from None
