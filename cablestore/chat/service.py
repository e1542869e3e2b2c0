"""The process that has a store open answers the calls of a client in another process, and tells it what is new.

Each client has a `OpenCabal` of its own on the store, so that a slow search of one does not keep the others waiting.
Nothing of it remains when the client is gone. Bytes are as `wire` says.
"""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import suppress
from functools import partial
from typing import Any, Final

from cablestore import limits
from cablestore.aio.threads import on_loop
from cablestore.chat.hosting import WatchedNode
from cablestore.chat.open_cabal import OpenCabal
from cablestore.chat.wire import (
    CALLS,
    MAX_FRAME_SIZE_BYTES,
    PROBLEM,
    RESULT,
    TOLD,
    CabalState,
    frame,
    plain,
    read_frame,
)
from cablestore.errors import CableStoreError, StorageError, StoreClosedError
from cablestore.store.store import CableStore

_CALLS_AT_ONCE: Final = 16
"""Calls of a client that wait for the store. Further ones are not read yet."""
_STATE_EVERY_S: Final = 0.5
"""How often the state of the connection is compared with what the client has. News are sent at once."""
_METHODS: Final = {name: getattr(OpenCabal, name) for name in CALLS}


def serve_client(store: CableStore, node: WatchedNode | None, connection: socket.socket) -> None:
    """Talk to a client until it is gone, the store is closed or the socket is shut down, in this thread.

    `node` is the one that connects the store to peers.
    """
    cabal = OpenCabal(store, "", node)
    try:
        asyncio.run(_talk(store, cabal, connection))
    finally:
        cabal.stop()


async def _talk(store: CableStore, cabal: OpenCabal, connection: socket.socket) -> None:
    # The copy is closed by the loop. The caller's may be shut down in another thread at any time.
    reader, writer = await asyncio.open_unix_connection(sock=connection.dup())
    service = _Service(store, cabal, writer)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(service.tell())
            while True:
                given = await service.next_call(reader)
                tasks.create_task(service.answer(given))
    except* (ConnectionError, StoreClosedError):
        pass
    finally:
        writer.transport.abort()


class _Service:
    """Calls and news of one client."""

    def __init__(self, store: CableStore, cabal: OpenCabal, writer: asyncio.StreamWriter) -> None:
        self._store = store
        self._cabal = cabal
        self._writer = writer
        self._room = asyncio.Semaphore(_CALLS_AT_ONCE)
        self._sending = asyncio.Lock()

    async def tell(self) -> None:
        """Send what is new, as long as the store is open."""
        told: tuple[CabalState, int] | None = None
        cabal, came = self._cabal, asyncio.Event()
        cabal.notify(partial(on_loop, asyncio.get_running_loop(), came.set))
        while not self._store.is_closed:
            seen, news = cabal.seen, cabal.take_news()
            state = CabalState(cabal.own_key, cabal.connection, cabal.is_connected, cabal.listening)
            if (state, seen) != told or not news.is_empty:
                await self._send([TOLD, plain(state), plain(news), seen])
                told = state, seen
            with suppress(TimeoutError):
                async with asyncio.timeout(_STATE_EVERY_S):
                    await came.wait()
            came.clear()
        raise StoreClosedError

    async def next_call(self, reader: asyncio.StreamReader) -> list[Any]:
        """Return the next frame, when there is room for a call. Raises ConnectionError at the end."""
        await self._room.acquire()
        try:
            return await read_frame(reader, limits.MAX_CONTROL_REQUEST_SIZE_BYTES)
        except ValueError as error:
            await self._send([PROBLEM, 0, str(error), False])
            raise ConnectionAbortedError(str(error)) from None

    async def answer(self, given: list[Any]) -> None:
        """Run a call and send its result, or why there is none."""
        number = given[0] if type(given[0]) is int else 0
        try:
            await self._send([RESULT, number, await self._run(given), self._cabal.last_sequence])
        except StoreClosedError:
            raise
        except CableStoreError as error:
            await self._send([PROBLEM, number, str(error), isinstance(error, StorageError)])
        finally:
            self._room.release()

    async def _run(self, given: list[Any]) -> Any:
        try:
            _, name, arguments, deadline_s = given
            if name and time.monotonic() > deadline_s:
                raise CableStoreError("the process that has the store open was busy for too long, and did not do this")
            call = CALLS.get(name) if isinstance(name, str) else None
            named = None if call is None else call.read(arguments)
        except (ValueError, TypeError) as error:
            raise CableStoreError(f"no client of this version of cablestore calls so: {error}") from None
        if call is None or named is None:
            raise CableStoreError(
                f"{str(name)[:40]!r} is no call: run the same version of cablestore in both processes"
            )
        # In a thread: a list of a million channels takes seconds, and other frames are answered meanwhile.
        return await asyncio.to_thread(plain, await _METHODS[call.name](self._cabal, **named))

    async def _send(self, values: list[Any]) -> None:
        whole = frame(values, MAX_FRAME_SIZE_BYTES)
        async with self._sending:
            self._writer.write(whole)
            await self._writer.drain()
