"""Banned peers: hosts, and static keys in the handshake. A node does not exchange messages with them.

`bans.json` in the store's folder: {"format": 1, "bans": {"<host, or static key in hex>": <time of the ban in ms>}}. It
is replaced by rename before a ban takes effect. So a ban lasts until `remove`, even after a restart.
"""

from __future__ import annotations

import ipaddress
import json
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct, to_builtins

from cablestore.documents import read_document
from cablestore.errors import NodeError
from cablestore.files import storage_errors, write_atomically
from cablestore.store.options import system_clock_ms

NAME: Final = "bans.json"
BANNED: Final = "the peer is banned (`cablestore peers unban` accepts it again)"
"""Reason for the end of a connection."""


class _File(Struct):
    format: Literal[1]
    bans: dict[str, int]


class Bans:
    """Banned peers of a node, stored in `folder`, or only in memory if `folder` is None. Usable in any thread."""

    def __init__(self, folder: Path | None) -> None:
        """Read the file. A damaged file raises NodeError, because a banned peer must not connect.

        Raises StorageError if the file cannot be read.
        """
        self._path = None if folder is None else folder / NAME
        self._changing = threading.Lock()
        self._bans: dict[str, int] = {}
        if self._path is not None:
            with storage_errors(f"cannot read the banned peers from {self._path}"), suppress(FileNotFoundError):
                self._bans = _decoded(self._path, self._path.read_bytes())

    def has(self, *names: str) -> bool:
        """Return True if one of these hosts or keys in hex is banned."""
        return bool(self._bans) and any(name in self._bans for name in names)

    def all(self) -> dict[str, int]:
        """Return the time of each ban in milliseconds, by host or key in hex."""
        return dict(self._bans)

    def add(self, names: Iterable[str]) -> None:
        """Ban hosts or keys. Raises StorageError if the file cannot be written; then none of them is banned."""
        with self._changing:
            self._change(dict.fromkeys(names, system_clock_ms()) | self._bans)

    def remove(self, name: str) -> bool:
        """Accept a host or key again. Return False if it is not banned. Raises StorageError like `add`."""
        with self._changing:
            is_banned = name in self._bans
            self._change({each: since_ms for each, since_ms in self._bans.items() if each != name})
        return is_banned

    def _change(self, bans: dict[str, int]) -> None:
        if self._path is not None and bans != self._bans:
            write_atomically(self._path, json.dumps(to_builtins(_File(1, bans)), indent=1).encode() + b"\n")
        self._bans = bans


def host_name(text: str) -> str:
    """Return the normalized spelling of an IP address or a host name."""
    with suppress(ValueError):
        return str(ipaddress.ip_address(text))
    return text.lower()


def is_ip_address(text: str) -> bool:
    """Return True if `text` is an IPv4 or IPv6 address."""
    with suppress(ValueError):
        return bool(ipaddress.ip_address(text))
    return False


def _decoded(path: Path, data: bytes) -> dict[str, int]:
    try:
        return read_document(data, _File).bans
    except ValueError as error:
        raise NodeError(f"cannot read the banned peers in {path}: {error}. Correct or remove the file") from None
