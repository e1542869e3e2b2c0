"""Marks: up to when a peer's history of a channel is known to be complete. The next sync asks only for newer posts.

`peers.json` in the store's folder: by peer (its static key in hex, or host:port) and channel, times in milliseconds.

    {"format": 1, "peers": {"<peer>": {"<channel>":
        {"from_ms": 0, "until_ms": 1700000000000, "full_at_ms": 1700000000000}}}}

A reconciliation that is not finished has a mark too (`stretches`), with `stretch_ms`, under a name that no channel has.

Losing the file costs one full pass for each peer, so a damaged file counts as none.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from cablestore import limits
from cablestore.files import whole_file

FORMAT: Final = 1
_NAME: Final = "peers.json"
_PAUSE: Final = 100
"""How much longer than a save the pause after it lasts."""


@dataclass(frozen=True, slots=True)
class SyncMark:
    """One pass over a channel: all posts dated between `from_ms` and `until_ms` are here.

    `full_at_ms` is when a pass last went back to `from_ms`. For a reconciliation that is not finished, it is when the
    reconciliation began, and `stretch_ms` is the length of time that it compares at once, 0 for all that is left.
    """

    from_ms: int
    until_ms: int
    full_at_ms: int
    stretch_ms: int = 0


class SyncState:
    """The marks of all peers. `folder` is the store's; None keeps them in memory only."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / _NAME
        self._peers: dict[str, dict[str, SyncMark]] = {}
        self._is_changed = False
        self._next_save_s = 0.0
        if self._path is not None and self._path.exists():
            self._peers = _read(self._path)
        self._count = sum(map(len, self._peers.values()))

    def get(self, peer: str, channel: str) -> SyncMark | None:
        """Return the mark of a peer's channel."""
        return self._peers.get(peer, {}).get(channel)

    def put(self, peer: str, channel: str, mark: SyncMark) -> None:
        """Store the mark of a completed pass."""
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
        """Forget all marks: posts that were refused may be welcome now."""
        self._is_changed |= bool(self._peers)
        self._peers.clear()
        self._count = 0

    def save_at_times(self, now_s: float) -> None:
        """Do what `save` does, so seldom that it takes a hundredth of the time at most."""
        if now_s >= self._next_save_s:
            began_s = time.perf_counter()
            self.save()
            self._next_save_s = now_s + _PAUSE * (time.perf_counter() - began_s)

    def save(self) -> None:
        """Write the marks to disk if they have changed."""
        if self._path is None or not self._is_changed:
            return
        self._is_changed = False
        peers = {peer: {name: _written(mark) for name, mark in marks.items()} for peer, marks in self._peers.items()}
        # On a full disk the next sync asks for more than it needs.
        with suppress(OSError), whole_file(self._path, sync=False) as file:
            file.write(json.dumps({"format": FORMAT, "peers": peers}, ensure_ascii=False).encode())


def _written(mark: SyncMark) -> dict[str, int]:
    written = {"from_ms": mark.from_ms, "until_ms": mark.until_ms, "full_at_ms": mark.full_at_ms}
    return written | {"stretch_ms": mark.stretch_ms} if mark.stretch_ms else written


def _read(path: Path) -> dict[str, dict[str, SyncMark]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            return {}
        return {
            peer: {name: _mark_of(mark) for name, mark in channels.items()} for peer, channels in found["peers"].items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _mark_of(written: dict[str, object]) -> SyncMark:
    """Return a mark that was read. Raises TypeError if it is none."""
    if not all(type(value) is int for value in written.values()):
        raise TypeError("a mark has integers only")
    return SyncMark(**cast(dict[str, int], written))
