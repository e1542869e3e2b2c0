"""How a store tells another one that it reconciles, in a way that no other peer notices. Pure.

The ids of the first requests that we make on a connection follow from each other: the first is random, each of the next
is the beginning of the BLAKE2b of a fixed text and the id before it. To whoever does not compute that they are random
ids like any others. Later ids are random again.

Requests with a ttl do not count, because whoever forwards a request keeps its id. One that is forwarded with a ttl of 0 may
stand between ours, so the next id is looked for behind any of the first few. That it follows by chance has a probability of
less than 2**-64: three ids of 4 bytes have to, or two of 8, behind any of 16.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

_DOMAIN: Final = b"cablestore: the request id that follows "
_NEXT_IDS: Final = {4: 3, 8: 2}
"""How many ids follow the first one, by their size in bytes."""
_LISTENED_TO: Final = 16
_LEGACY_CIRCUIT: Final = bytes(4)

REQUESTS: Final = 1 + max(_NEXT_IDS.values())
"""With so many requests a store has greeted, in either dialect."""


def next_id(request_id: bytes) -> bytes:
    """Return the id that follows this one."""
    return hashlib.blake2b(_DOMAIN + request_id, digest_size=32).digest()[: len(request_id)]


class Greeter:
    """Makes request ids: those of a greeting, then random ones. `new_id` makes random ones of a given size.

    Where the size changes, because the peer speaks the other dialect, it greets anew.
    """

    def __init__(self, new_id: Callable[[int], bytes]) -> None:
        self._new_id = new_id
        self._size_bytes = 0
        self._following: list[bytes] = []

    def __call__(self, size_bytes: int) -> bytes:
        """Return the next id, of this size."""
        if size_bytes != self._size_bytes:
            self._size_bytes = size_bytes
            self._following = self._new_greeting(size_bytes)
        return self._following.pop(0) if self._following else self._new_id(size_bytes)

    def _new_greeting(self, size_bytes: int) -> list[bytes]:
        """Make the ids of a greeting. None of draft 8 may begin as those of legacy do."""
        while True:
            ids = [self._new_id(size_bytes)]
            for _ in range(_NEXT_IDS[size_bytes]):
                ids.append(next_id(ids[-1]))
            if size_bytes == len(_LEGACY_CIRCUIT) or not any(each.startswith(_LEGACY_CIRCUIT) for each in ids):
                return ids


class Listener:
    """Hears the ids of one side's requests, and whether they are a greeting."""

    def __init__(self) -> None:
        self.has_heard = False
        self._heard = 0
        self._follows: dict[bytes, int] = {}
        """Which id would follow one that was heard, and how many ids have followed each other before it."""

    def hear(self, request_id: bytes) -> None:
        """Hear the next request that has no ttl."""
        if self.has_heard or self._heard >= _LISTENED_TO:
            return
        self._heard += 1
        followed = self._follows.pop(request_id, 0)
        if followed == _NEXT_IDS[len(request_id)]:
            self.has_heard = True
            self._follows.clear()
        else:
            self._follows[next_id(request_id)] = followed + 1
