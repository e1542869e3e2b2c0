"""Marks: up to when a peer's history of a channel is known to be complete. The next sync requests only newer posts.

`peers.json` in the store's folder: by peer (its static key in hex, or host:port) and channel, times in milliseconds.

    {"format": 2, "place": {"database": "...", "sequence": 2000, "entry": "01..."}, "peers": {"<peer>": {"<channel>":
        {"from_ms": 0, "until_ms": 1700000000000, "full_at_ms": 1700000000000}}}}

An unfinished reconciliation has a mark too (`time_ranges`), with `range_ms`, under a name that is not a channel's.

Marks are valid as long as the store keeps its posts. So the file contains a position in the history of the database
(`cablestore.index.log_position`). This position is on the disk before the file is written. `follow` voids all marks if
the position is no longer valid, or if posts were discarded since. Void marks, and a lost or damaged file, cost one full
pass for each peer.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct, to_builtins

from cablestore import limits
from cablestore.documents import read_document
from cablestore.errors import CableStoreError
from cablestore.files import atomic_file
from cablestore.index.log_position import LogPosition
from cablestore.index.reader import Reader

FORMAT: Final = 2
_NAME: Final = "peers.json"

Marks = dict[str, dict[str, "SyncMark"]]
"""Marks by peer and channel."""


class SyncMark(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One pass over a channel: all posts dated between `from_ms` and `until_ms` are stored.

    `full_at_ms` is when a pass last went back to `from_ms`. For an unfinished reconciliation, it is the start of the
    reconciliation. Then `range_ms` is the length of a compared time range, 0 for all that remains.
    """

    from_ms: int
    until_ms: int
    full_at_ms: int
    range_ms: int = 0
    back_ms: int = 0
    """The date that a full pass in the background has reached, 0 if such a pass is not running."""


class SyncState:
    """The marks of all peers, for one node, stored in `folder`, or only in memory if `folder` is None.

    `sync` returns when the store's posts are on the disk. Use it on the loop. The function that `changed` returns may
    run in any thread.
    """

    def __init__(self, folder: Path | None, sync: Callable[[], None] = lambda: None) -> None:
        self._path = None if folder is None else folder / _NAME
        self._sync = sync
        self._peers: Marks = {}
        self._is_changed = False
        self._writing = threading.Lock()
        self._saves = self._written = 0
        """Numbers of the last save that began, and of the last save that was written. An older save is not written."""
        self._place: LogPosition | None = None
        """Log position at which the store contained the posts of all marks."""
        self.epoch = 0
        """A number that grows when marks are voided. A pass that began in an earlier epoch must not store a mark."""
        if self._path is not None and self._path.exists():
            self._place, self._peers = _read(self._path)
        self._read_place = self._place
        """The last position that was read. It and `_losses` belong to the reading thread."""
        self._losses = self._losses_known = 0
        """Numbers of invalid positions found and handled. They differ if a call of `follow` was cancelled."""
        self._count = sum(map(len, self._peers.values()))

    async def follow(self, read: Callable[[Callable[[Reader], LogPosition]], Awaitable[LogPosition]]) -> None:
        """Void the marks if the store lost posts since they were created. Call this before marks are used or stored.

        `read` calls a function with a reader and returns the result, one call at a time. Raises CableStoreError if the
        store cannot be read.
        """
        self._place = await read(self._read_position)
        if self._losses != self._losses_known:
            self._losses_known = self._losses
            self.clear()

    def _read_position(self, reader: Reader) -> LogPosition:
        before, present = self._read_place, LogPosition.of(reader)
        if before is None or not before.keeps_posts_in(reader):
            self._losses += 1
        self._read_place = present
        return present

    def get(self, peer: str, channel: str) -> SyncMark | None:
        """Return the mark of a peer's channel, None without a mark."""
        return self._peers.get(peer, {}).get(channel)

    def put(self, peer: str, channel: str, mark: SyncMark) -> None:
        """Store the mark of a pass. Above the limits, the least recently stored marks are dropped."""
        channels = self._peers.pop(peer, {})
        self._count += channel not in channels
        channels.pop(channel, None)
        channels[channel] = mark
        self._peers[peer] = channels
        while len(channels) > limits.MAX_MARKS_PER_PEER:
            del channels[next(iter(channels))]
            self._count -= 1
        while len(self._peers) > limits.MAX_PEERS_REMEMBERED or self._count > limits.MAX_MARKS:
            self._count -= len(self._peers.pop(next(iter(self._peers))))
        self._is_changed = True

    def drop(self, peer: str, channel: str) -> None:
        """Forget a mark."""
        if self._peers.get(peer, {}).pop(channel, None) is not None:
            self._count -= 1
            self._is_changed = True

    def clear(self) -> None:
        """Void all marks: posts were lost, or rejected posts may be admitted now."""
        self._is_changed |= bool(self._peers)
        self._peers = {}
        self._count = 0
        self.epoch += 1

    def changed(self) -> Callable[[], None] | None:
        """Return a function that writes the present marks to the disk in any thread, None if nothing has changed."""
        if self._path is None or not self._is_changed:
            return None
        self._is_changed = False
        self._saves += 1
        peers = {peer: dict(marks) for peer, marks in self._peers.items()}
        return partial(self._write, self._path, self._saves, self._place, peers)

    def save(self) -> None:
        """Write the marks to the disk if they have changed."""
        write = self.changed()
        if write is not None:
            write()

    def _write(self, path: Path, number: int, place: LogPosition | None, peers: Marks) -> None:
        # If the store's posts or the marks cannot be written, the next sync requests more than it needs.
        with self._writing, suppress(OSError, CableStoreError):
            if number < self._written:
                return
            self._sync()
            with atomic_file(path, sync=False) as file:
                file.write(_encode(place, peers))
            self._written = number


class _File(Struct):
    format: Literal[2]
    place: dict[str, Any] | None
    peers: Marks


def _encode(place: LogPosition | None, peers: Marks) -> bytes:
    file = _File(FORMAT, None if place is None else place.fields(), peers)
    return json.dumps(to_builtins(file), ensure_ascii=False).encode()


def _read(path: Path) -> tuple[LogPosition | None, Marks]:
    try:
        file = read_document(path.read_bytes(), _File)
        return None if file.place is None else LogPosition.read(file.place), file.peers
    except (OSError, ValueError):
        return None, {}
