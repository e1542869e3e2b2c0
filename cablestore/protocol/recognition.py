"""Recognition of another cablestore, which can reconcile, without any effect on other peers.

The ids of the first requests on a connection are a greeting. The first id is random. Each further id of the greeting is
the beginning of the BLAKE2b hash of a fixed text and the previous id. To peers that do not compute this hash, the ids
look random. Ids after the greeting are random again.

Requests with a ttl do not count, because a peer that forwards a request keeps its id. A request forwarded with a ttl of
0 may be between the requests of a greeting, so an id may follow any earlier id. The probability of a greeting by chance
is less than 2**-64: three ids of 4 bytes, or two ids of 8 bytes, would have to follow any of 16 ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

_DOMAIN: Final = b"cablestore: the request id that follows "
_NEXT_IDS: Final = {4: 3, 8: 2}
"""Number of ids after the first id, by the size of an id in bytes."""
_LISTENED_TO: Final = 16
_LEGACY_CIRCUIT: Final = bytes(4)

REQUESTS: Final = 1 + max(_NEXT_IDS.values())
"""Number of requests after which the greeting is complete, in either dialect."""


def next_id(request_id: bytes) -> bytes:
    """Return the id that follows `request_id` in a greeting."""
    return hashlib.blake2b(_DOMAIN + request_id, digest_size=32).digest()[: len(request_id)]


class Greeter:
    """Generator of request ids: first the ids of a greeting, then random ids. `new_id` returns an id of a given size.

    If the size changes, because the peer uses the other dialect, the greeting starts again.
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
        """Return the ids of a greeting. An id of draft 8 must not begin with the zeros of legacy."""
        while True:
            ids = [self._new_id(size_bytes)]
            for _ in range(_NEXT_IDS[size_bytes]):
                ids.append(next_id(ids[-1]))
            if size_bytes == len(_LEGACY_CIRCUIT) or not any(each.startswith(_LEGACY_CIRCUIT) for each in ids):
                return ids


class GreetingDetector:
    """Detector of a greeting in the ids of one side's requests."""

    def __init__(self) -> None:
        self.is_detected = False
        self.first = b""
        """Id of the first request, which is random."""
        self._added = 0
        self._follows: dict[bytes, int] = {}
        """The next id of each possible greeting, and the number of ids that have followed its first id."""

    def add(self, request_id: bytes) -> None:
        """Process the id of the next request without a ttl."""
        self.first = self.first or request_id
        if self.is_detected or self._added >= _LISTENED_TO:
            return
        self._added += 1
        followed = self._follows.pop(request_id, 0)
        if followed == _NEXT_IDS[len(request_id)]:
            self.is_detected = True
        else:
            self._follows[next_id(request_id)] = followed + 1
