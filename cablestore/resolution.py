"""Look-up of host addresses in daemon threads, so that neither an event loop nor the exit of the program waits for it.

`getaddrinfo` cannot be cancelled, and blocks for minutes if the name server does not answer. In the executor of an
event loop, a few such names would delay all other work. The loop's shutdown would also wait for them.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, NamedTuple

from cablestore import limits
from cablestore.interruptible import in_thread

AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]
"""Item of the result of `socket.getaddrinfo`."""


def look_up(host: str, flags: int = 0) -> list[AddressInfo]:
    """Return the addresses of a host. Blocks. Raises OSError, and ValueError for invalid host names."""
    if "\0" in host:  # the system would look up the part before it
        raise ValueError("a host name cannot contain a null character")
    return list(socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=flags))


class _Known(NamedTuple):
    found_s: float
    addresses: Sequence[AddressInfo]


class Resolver:
    """Resolver of host names, with at most one look-up per host at a time. Thread-safe; works with any event loop.

    Addresses are reused for `limits.NAME_FRESH_S`, and longer if the name server does not answer.
    """

    def __init__(
        self,
        find: Callable[[str], Sequence[AddressInfo]] = look_up,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`find` returns the addresses of a host. It is called in threads."""
        self._find = find
        self._clock = clock
        self.forget()

    def forget(self) -> None:
        """Forget all addresses, and the look-ups in progress."""
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._under_way: dict[str, Future[Sequence[AddressInfo]]] = {}

    async def resolve(self, host: str, port: int) -> list[AddressInfo]:
        """Return the addresses of a host, with a port. Raises OSError, and ValueError for invalid names."""
        found = _numeric(host) or await self._addresses(host)
        # The zone is also in the string, because uvloop ignores the number.
        return [(*info[:4], (_text(info[4]), port, *info[4][2:])) for info in found]

    async def texts(self, host: str) -> list[str]:
        """Return the addresses of a host as strings, for code that would otherwise block during the look-up.

        Raises the errors of `resolve`.
        """
        if not host or _numeric(host):
            return [host]
        return [_text(info[4]) for info in await self._addresses(host)]

    def is_looking_up(self, host: str) -> bool:
        """Return True during a look-up of the host's addresses."""
        return host in self._under_way

    def doubt(self, host: str) -> None:
        """Look up a host again at its next use, because its known addresses did not answer."""
        with self._lock:
            known = self._known.get(host)
            if known is not None:
                self._known[host] = known._replace(found_s=float("-inf"))

    async def _addresses(self, host: str) -> Sequence[AddressInfo]:
        known = self._known.get(host)
        if known is None:
            return await asyncio.wrap_future(self._look_up(host))
        if self._clock() - known.found_s < limits.NAME_FRESH_S:
            return known.addresses
        try:
            return await asyncio.wait_for(asyncio.wrap_future(self._look_up(host)), limits.NAME_PATIENCE_S)
        except TimeoutError:
            return known.addresses
        except socket.gaierror as error:
            if error.errno == socket.EAI_AGAIN:  # the name server failed; the name may still exist
                return known.addresses
            raise

    def _look_up(self, host: str) -> Future[Sequence[AddressInfo]]:
        """Return the future addresses of a host, from a look-up in progress or a new look-up."""
        found = self._under_way.get(host)
        if found is None:
            try:
                found = in_thread(partial(self._find, host), "cablestore-names")
            except RuntimeError as error:  # the system does not allow another thread
                raise OSError(f"cannot resolve the host name {host}: {error}") from None
            self._under_way[host] = found
            found.add_done_callback(partial(self._keep, host))
        return found

    def _keep(self, host: str, found: Future[Sequence[AddressInfo]]) -> None:
        """Cache the result of a look-up. Called in its thread."""
        with self._lock:
            self._under_way.pop(host, None)
            if found.exception() is None:
                self._known.pop(host, None)  # moves the host to the end, where the latest are
                self._known[host] = _Known(self._clock(), found.result())
                while len(self._known) > limits.MAX_KNOWN_HOSTS:
                    del self._known[next(iter(self._known))]


def _numeric(host: str) -> list[AddressInfo]:
    """Return the address of a numeric host, or [] for a name."""
    try:
        return look_up(host, socket.AI_NUMERICHOST)
    except socket.gaierror:
        return []


def _text(address: tuple[Any, ...]) -> str:
    """Return an address with its zone, if any."""
    zone = address[3] if len(address) == 4 else 0
    return f"{address[0]}%{zone}" if zone else str(address[0])


RESOLVER: Final = Resolver()
"""Resolver of this process. A forked child does not have the threads, so it starts without look-ups."""
os.register_at_fork(after_in_child=RESOLVER.forget)
