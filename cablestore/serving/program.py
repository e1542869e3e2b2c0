"""Connection to a program that uses an open store: its calls, iterators and snapshots, and the reports of changes.

Each program has separate threads for its calls, so that a slow search does not delay other programs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from inspect import iscoroutine
from typing import Any, Final

import msgspec

from cablestore import errors, limits
from cablestore.aio import AsyncCableStore, AsyncSnapshot
from cablestore.aio.items import Feed
from cablestore.aio.items import Items as AsyncItems
from cablestore.errors import CableStoreError, OwnerGoneError
from cablestore.remote import messages
from cablestore.remote.codec import Codec
from cablestore.remote.messages import (
    HEADER,
    Begun,
    Call,
    Cancel,
    Changed,
    Error,
    Items,
    More,
    NodeChanged,
    Ping,
    Pong,
    Progressed,
    Result,
    ToProgram,
    ToStore,
    frame,
)
from cablestore.remote.methods import RemoteMethod, method_of, names
from cablestore.remote.node import NodeState, WatchedNode
from cablestore.store.store import CableStore

_LOG: Final = logging.getLogger("cablestore.serving")
_AHEAD: Final = 2
"""Parts of an iterator that are sent without a request: one that is being read, and one ahead."""
_SNAPSHOT: Final = "snapshot"


class _ProgramGoneError(Exception):
    """The program closed the connection, or does not read."""


class ServedProgram:
    """Connection to one program."""

    def __init__(
        self,
        store: CableStore,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        writes: Callable[[], int],
        node: WatchedNode,
        slow_reader_s: float,
    ) -> None:
        """`writes` returns the number of writes, and `node` has the state of the node. The reports contain both.

        A program that does not read for `slow_reader_s` is disconnected.
        """
        self._slow_reader_s = slow_reader_s
        self._blocking = store
        self._store = AsyncCableStore(store)
        self._reader = reader
        self._writer = writer
        self._writes = writes
        self._node = node
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._streams: dict[int, asyncio.Semaphore] = {}
        """For each open iterator, by call number: the number of parts that it may send now."""
        self._snapshots: dict[int, AsyncSnapshot] = {}
        writer.transport.set_write_buffer_limits(0)  # drained data is in the socket and survives this process
        self._sending = asyncio.Lock()
        self._changed = asyncio.Event()
        self._changed.set()
        self.fileno: Final[int] = writer.get_extra_info("socket").fileno()

    def inform(self) -> None:
        """Schedule a report of the states of the store and its node."""
        self._changed.set()

    async def serve(self) -> None:
        """Answer calls until the program disconnects, does not read, or sends an invalid message."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._report())
                while True:
                    self._handle(await self._next_message(), tasks)
                    await self._drain()
        except* _ProgramGoneError:
            self._writer.transport.abort()
        except* ValueError as error:
            self._write(Error(0, "CableStoreError", str(error.exceptions[0])))
        finally:
            self._store.detach()
            for snapshot in self._snapshots.values():
                with suppress(CableStoreError):  # the store is closed
                    snapshot.blocking.close()

    async def _next_message(self) -> ToStore:
        try:
            [size] = HEADER.unpack(await self._reader.readexactly(HEADER.size))
            if size > limits.MAX_REMOTE_REQUEST_SIZE_BYTES:
                raise ValueError(
                    f"the message has {size:,} bytes, the maximum is {limits.MAX_REMOTE_REQUEST_SIZE_BYTES:,}"
                )
            return messages.to_store(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, OSError):
            raise _ProgramGoneError from None

    def _handle(self, message: ToStore, tasks: asyncio.TaskGroup) -> None:
        match message:
            case Call(number=number):
                if problem := self._excess(message):
                    self._write(Error(number, "CableStoreError", problem))
                    return
                if self._is_iterator(message):
                    self._streams[number] = asyncio.Semaphore(_AHEAD)
                self._calls[number] = tasks.create_task(self._answer(message))
            case More(number=number) if number in self._streams:
                self._streams[number].release()
            case Cancel(number=number):
                self._cancel(number, tasks)
            case Ping():
                self._write(Pong(message.number))

    def _excess(self, call: Call) -> str:
        """Return the reason why `call` must be rejected before it begins: its number is in use, or a limit is reached.

        Returns "" if the call may begin.
        """
        if call.number in self._calls or call.number in self._snapshots:
            return f"the call number {call.number} is in use"
        if call.method == _SNAPSHOT and len(self._snapshots) >= limits.MAX_REMOTE_SNAPSHOTS:
            return f"too many open snapshots: the maximum is {limits.MAX_REMOTE_SNAPSHOTS}. Close a snapshot"
        if self._is_iterator(call):
            is_full = len(self._streams) >= limits.MAX_REMOTE_ITERATORS
            return (
                f"too many open iterators: the maximum is {limits.MAX_REMOTE_ITERATORS}. Close an iterator"
                if is_full
                else ""
            )
        is_full = len(self._calls) - len(self._streams) >= limits.MAX_REMOTE_CALLS
        return f"too many running calls: the maximum is {limits.MAX_REMOTE_CALLS}. Wait for one" if is_full else ""

    def _is_iterator(self, call: Call) -> bool:
        return call.method in names() and method_of(call.method, self._store.dialect).is_iterator

    def _cancel(self, number: int, tasks: asyncio.TaskGroup) -> None:
        if number in self._calls:
            self._streams.pop(number, None)
            self._calls.pop(number).cancel()
        elif number in self._snapshots:
            tasks.create_task(self._snapshots.pop(number).close())

    # --- calls -----------------------------------------------------------------------------------

    async def _answer(self, call: Call) -> None:
        try:
            await self._begin(call)
            if call.method == _SNAPSHOT:
                self._snapshots[call.number] = snapshot = await self._store.snapshot()
                value = msgspec.Raw(Codec(int).encode(snapshot.last_sequence))
                await self._send(Result(call.number, value, self._store.last_sequence))
            else:
                await self._run(call, method_of(call.method, self._store.dialect))
        except CableStoreError as error:
            await self._send(Error(call.number, _class_of(error), str(error)))
        except _ProgramGoneError:
            raise
        except Exception as error:  # noqa: BLE001 - the program gets an error, and other programs are still served
            _LOG.warning("a call failed", exc_info=True, extra={"method": call.method[:40]})
            await self._send(Error(call.number, "CableStoreError", f"{type(error).__name__}: {error}"))
        finally:
            if self._calls.get(call.number) is asyncio.current_task():  # it was not cancelled
                del self._calls[call.number]
                self._streams.pop(call.number, None)

    async def _begin(self, call: Call) -> None:
        """Announce a call that may write, then compare its deadline with the clock.

        In this order, a program that received no announcement before the deadline knows that the call never runs. This
        holds even if this process is stopped or killed in between.
        """
        if call.method != _SNAPSHOT and not method_of(call.method, self._store.dialect).is_read:
            self._write(Begun(call.number))
            await self._drain()
        _require_time(call)

    async def _run(self, call: Call, method: RemoteMethod) -> None:
        given = method.read(call.arguments)
        progress = _Progress(call.number, self._write)
        if method.has_progress:
            given["progress"] = progress.add
        if method.function is not None:
            found: Any = self._store.run(method.function, **given)
        else:
            member = getattr(self._target(call, method), method.name)
            found = member if method.is_property else member(**given)
        if isinstance(found, AsyncItems | Feed):
            await self._stream(call.number, found, method)
            return
        value = await found if iscoroutine(found) else found
        progress.flush()
        await self._send(Result(call.number, msgspec.Raw(method.result.encode(value)), self._store.last_sequence))

    def _target(self, call: Call, method: RemoteMethod) -> Any:
        if call.snapshot:
            if call.snapshot not in self._snapshots or not method.is_of_snapshot:
                raise errors.StoreClosedError("the store, or this snapshot of it, is closed")
            return self._snapshots[call.snapshot]
        space, _, _ = call.method.rpartition(".")
        if space == "node":
            return self._node
        return getattr(self._store, space) if space else self._store

    async def _stream(self, number: int, items: AsyncItems[Any] | Feed[Any, Any], method: RemoteMethod) -> None:
        room = self._streams[number]
        is_last = False
        while not is_last:
            await room.acquire()
            found = await items.next_items(limits.MAX_REMOTE_ITEMS)
            is_last = not found
            await self._send(Items(number, msgspec.Raw(method.result.encode(found)), is_last))

    # --- sending ---------------------------------------------------------------------------------

    async def _report(self) -> None:
        """Report the states of the store and its node.

        Changes within `limits.REMOTE_CHANGE_WINDOW_S` are reported together.
        """
        reported: NodeState | None = None
        while True:
            await self._changed.wait()
            self._changed.clear()
            node = self._node.state
            if node is not None and node is not reported:
                await self._send(NodeChanged(0, node))
                reported = node
            store = self._blocking
            state = store.write_state
            await self._send(
                Changed(
                    self._writes(), store.last_sequence, state.failure, state.failed_writes, is_closed=store.is_closed
                )
            )
            await asyncio.sleep(limits.REMOTE_CHANGE_WINDOW_S)

    def _write(self, message: ToProgram) -> None:
        self._writer.write(frame(message, limits.MAX_REMOTE_REPLY_SIZE_BYTES))

    async def _send(self, message: ToProgram) -> None:
        whole = frame(message, limits.MAX_REMOTE_REPLY_SIZE_BYTES)
        async with self._sending:
            self._writer.write(whole)
            await self._drain()

    async def _drain(self) -> None:
        """Wait until all written data is in the socket. Raises _ProgramGoneError if the program does not read."""
        try:
            async with asyncio.timeout(self._slow_reader_s):
                await self._writer.drain()
        except OSError:
            raise _ProgramGoneError from None


class _Progress:
    """Progress of a call, reported at most once in `limits.REMOTE_CHANGE_WINDOW_S`."""

    def __init__(self, number: int, write: Callable[[ToProgram], None]) -> None:
        self._number = number
        self._write = write
        self._count = 0
        self._next_s = 0.0

    def add(self, count: int) -> None:
        """Add `count` to the progress, and report it if the last report is long enough ago. Called on the loop."""
        self._count += count
        if time.monotonic() >= self._next_s:
            self.flush()

    def flush(self) -> None:
        """Report the progress since the last report."""
        if self._count:
            self._write(Progressed(self._number, self._count))
            self._count, self._next_s = 0, time.monotonic() + limits.REMOTE_CHANGE_WINDOW_S


def _require_time(call: Call) -> None:
    if time.monotonic() > call.deadline_s:
        raise OwnerGoneError("the process that has the store open was busy for too long. The call was not run")


def _class_of(error: CableStoreError) -> str:
    """Return the name of the class of an error, or of the nearest base that is in `cablestore.errors`."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
