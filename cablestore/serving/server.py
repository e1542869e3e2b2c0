"""Server of an open store: one event loop in one thread serves all programs."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Coroutine, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from cablestore import limits
from cablestore.arguments import check_instance
from cablestore.closable import Closable
from cablestore.errors import ArgumentError, StoreClosedError
from cablestore.files import storage_errors
from cablestore.forks import ProcessBound, bind
from cablestore.remote import messages
from cablestore.remote.messages import VERSIONS, Hello, Offer
from cablestore.remote.node import WatchedNode
from cablestore.remote.unix_socket import Listener, is_same_user
from cablestore.serving.program import ServedProgram
from cablestore.store.store import CableStore

_LOG: Final = logging.getLogger("cablestore.serving")
_ACCEPT_AGAIN_S: Final = 0.1


class StoreServer(Closable, ProcessBound):
    """Server of an open store. Close it before the store."""

    def __init__(
        self,
        store: CableStore,
        owner: str = "",
        listener: Listener | None = None,
        *,
        node: WatchedNode | None = None,
        hello_timeout_s: float = limits.REMOTE_HELLO_TIMEOUT_S,
        slow_reader_s: float = limits.REMOTE_SLOW_READER_S,
    ) -> None:
        """Serve the connections of a listening socket, and those that `adopt` receives. `offer` creates the socket.

        `node` connects the store to peers, and its state is reported to the programs. `close` closes the listening
        socket.
        """
        self._node = node or WatchedNode()
        self._hello_timeout_s = hello_timeout_s
        self._slow_reader_s = slow_reader_s
        self._store = store
        self._owner = owner
        self._listener = listener
        self._programs: set[ServedProgram] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._noting = threading.Lock()
        self._writes = 0
        """Writes since the server started, except those that change only local values."""
        self._is_noted = False
        """True while a report to the programs is scheduled."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="cablestore-serving", daemon=True)
        self._ends = [store.watch(self._count_write), store.watch(self._note, local=True), self._node.watch(self._note)]
        self._thread.start()
        bind(self)

    def _sockets(self) -> Iterable[int]:
        """Return the descriptors that a child must not keep open."""
        listener = [] if self._listener is None else [self._listener.socket.fileno()]
        return [number for number in (*listener, *(each.fileno for each in self._programs)) if number >= 0]

    def adopt(self, connection: socket.socket) -> None:
        """Serve the program at the other end of `connection`. The connection is duplicated. Thread-safe."""
        copy = connection.dup()
        self._loop.call_soon_threadsafe(lambda: self._begin(self._greet(copy), copy))

    def close(self) -> None:
        """Remove the socket, and close all connections. Calls that have begun complete in their threads."""
        if self._loop.is_closed():
            return
        if self._listener is not None:
            self._listener.withdraw()
        for end in self._ends:
            end()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    # --- on the loop -----------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        if self._listener is not None:
            self._accept_from(self._listener.socket)
        try:
            self._loop.run_forever()
        finally:
            for task in self._tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
            self._loop.run_until_complete(asyncio.sleep(0))  # transports close their sockets one loop iteration later
            self._loop.close()
            if self._listener is not None:
                self._listener.close()

    def _begin(self, work: Coroutine[Any, Any, None], connection: socket.socket | None = None) -> None:
        """Run `work` in a task. If the task is cancelled, perhaps before it runs, `connection` is closed."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if connection is not None:
            task.add_done_callback(lambda ended: connection.close() if ended.cancelled() else None)

    def _accept_from(self, listener: socket.socket) -> None:
        self._loop.add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return  # the program is gone
        except OSError:  # too many open files: wait until some are closed
            self._loop.remove_reader(listener)
            self._loop.call_later(_ACCEPT_AGAIN_S, self._accept_from, listener)
            return
        if is_same_user(connection):
            self._begin(self._greet(connection), connection)
        else:
            connection.close()

    async def _greet(self, connection: socket.socket) -> None:
        """Exchange the first lines, then serve the program until it disconnects."""
        connection.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=limits.MAX_REMOTE_HELLO_SIZE_BYTES)
        try:
            async with asyncio.timeout(self._hello_timeout_s):
                problem = self._problem(await reader.readline())
            writer.write(messages.line(self._offer(problem)))
            if not problem:
                await self._serve(reader, writer)
        except (OSError, TimeoutError, ValueError):
            pass  # the program is gone or silent, or its line is too long
        except Exception:  # noqa: BLE001 - other programs are still served
            _LOG.exception("cannot serve a program")
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        finally:
            writer.close()  # the written bytes are still sent, if the program reads them in time
            self._loop.call_later(self._slow_reader_s, writer.transport.abort)

    def _problem(self, line: bytes) -> str:
        hello = messages.read_line(line, Hello)
        if hello is None:
            return "invalid first line: expected JSON with the version of cablestore and the versions of the protocol"
        if len(self._programs) >= limits.MAX_REMOTE_CLIENTS:
            return f"too many programs use this store: the maximum is {limits.MAX_REMOTE_CLIENTS}. Close a program, or wait"
        return messages.rejection(hello, "the program")

    def _offer(self, problem: str) -> Offer:
        path = self._store.path
        return Offer(
            messages.own_version(),
            VERSIONS,
            self._owner,
            self._store.dialect.name,
            None if path is None else str(path.absolute()),
            self._store.is_read_only,
            problem,
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        program = ServedProgram(self._store, reader, writer, lambda: self._writes, self._node, self._slow_reader_s)
        self._programs.add(program)
        try:
            await program.serve()
        finally:
            self._programs.discard(program)

    # --- reports ---------------------------------------------------------------------------------

    def _count_write(self) -> None:
        """Count a write. Called in the writing thread, before `_note`."""
        with self._noting:
            self._writes += 1

    def _note(self) -> None:
        """Schedule a report to the programs. Called in the thread that wrote or that changed the node's state."""
        with self._noting:
            if self._is_noted:
                return
            self._is_noted = True
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._inform)

    def _inform(self) -> None:
        with self._noting:
            self._is_noted = False
        for program in self._programs:
            program.inform()


def offer(store: CableStore, *, owner: str = "", node: WatchedNode | None = None) -> StoreServer:
    """Serve an open store to other processes of this user: `cablestore.connect` returns the store in those processes.

    Close the returned server before the store, or use it in a `with`. `owner` and `node`, the node that connects the
    store to peers, are `RemoteStore.owner` and `RemoteStore.node` in the other processes. Raises ArgumentError for a
    store in memory and StoreClosedError for a closed store. Raises StorageError if no socket can be created in the
    store's folder, or this process has too many open files.
    """
    check_instance("store", store, CableStore, "an open CableStore")
    if store.is_closed:
        raise StoreClosedError("the store is closed")
    if store.path is None:
        raise ArgumentError("invalid argument store: a store in memory has no folder for a socket. Use CableStore.open")
    with ExitStack() as undo, storage_errors(f"cannot serve the store at {store.path}"):
        listener = Listener(Path(store.path))
        undo.callback(listener.close)
        server = StoreServer(store, owner, listener, node=node)
        undo.pop_all()
    return server
