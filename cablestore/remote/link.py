"""Connection of a program to the process that has its store open. Calls can come from any number of threads.

The calling thread sends its call and waits for the result. One receiving thread passes results to the calls and records
the state that the store reports. Each call ends even if that process hangs, stops or is killed.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

import msgspec

from cablestore import limits
from cablestore.errors import CableStoreError, OwnerGoneError, StoreClosedError
from cablestore.files import storage_errors
from cablestore.forks import ProcessBound, bind
from cablestore.remote import messages, unix_socket
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
    Offer,
    Ping,
    Pong,
    Progressed,
    Result,
    ToProgram,
    ToStore,
    frame,
)
from cablestore.remote.node import WatchedNode

_LOG: Final = logging.getLogger("cablestore.remote")
_TICK_S: Final = 0.5
"""Maximum time of a single wait for a result. Waits are repeated, because Python handles a Ctrl-C that arrives just
before a wait only after the wait."""
_SILENT_TICKS: Final = 3
"""Ticks without a message after which a ping is sent, unless the timeout is short. After twice as many ticks, the
silence is logged."""
_RECEIVED_SIZE_BYTES: Final = 1_048_576


Answer = Result | Items | Progressed | Pong


class Pending:
    """Call that waits for its result."""

    def __init__(self, number: int, deadline_s: float, *, is_read: bool) -> None:
        self.number: Final = number
        self.deadline_s: Final = deadline_s
        self.is_read: Final = is_read
        self.has_begun = False
        """True if the call may have begun, and so may have written."""
        self.received: Final = SimpleQueue[Answer | Error | None]()
        """Messages received for this call. None: the connection was closed."""
        self.notify: Callable[[], None] = _do_nothing
        """Called in the receiving thread after a message for this call was received."""

    def put(self, message: Answer | Error | None) -> None:
        """Queue a message for the call."""
        self.received.put(message)
        self.notify()


class Link(ProcessBound):
    """Connection to the process that has a store open."""

    def __init__(self, connection: socket.socket, offer: Offer, received: bytes, timeout_s: float) -> None:
        """Start the receiving thread. Callers use `reach` or `over`."""
        self.offer: Final = offer
        self._timeout_s = timeout_s
        self._connection = connection
        self._buffer = bytearray(received)
        self._owner = unix_socket.owner_of(connection)
        self._numbers = count(1)
        self._sending = threading.Lock()
        self._permits: SimpleQueue[None] = SimpleQueue()
        """Permits: one item for each further call that may run at the same time.

        It replaces a semaphore, which is Python code: Ctrl-C could leave that locked. Here, Ctrl-C costs at most one
        permit.
        """
        for _ in range(limits.MAX_REMOTE_CALLS):
            self._permits.put(None)
        self._change_lock = threading.RLock()
        """Lock of `_changing`. Acquire it directly: Ctrl-C at the start of `with _changing` could leave it locked."""
        self._changing = threading.Condition(self._change_lock)
        self._pending: dict[int, Pending] = {}
        self._abandoned = deque[int]()
        self._watchers: tuple[tuple[Callable[[], None], bool], ...] = ()
        self._heard = 0
        """Number of reads from the socket that returned data."""
        self.state = Changed(0, 0, "", 0, is_closed=False)
        """Latest reported state of the store."""
        self.node: Final = WatchedNode()
        """Latest reported state of the node that connects the store to peers."""
        self._is_open = True
        self.is_closed = False
        """True if this side closed the connection."""
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        connection.settimeout(timeout_s)
        self._thread = threading.Thread(target=self._receive_all, name="cablestore-remote", daemon=True)
        self._thread.start()
        bind(self)

    @classmethod
    def reach(cls, folder: Path, *, timeout_s: float = limits.REMOTE_TIMEOUT_S) -> Link:
        """Connect to the process that has the store in a folder open. Raises OwnerGoneError if no process serves it.

        Calls fail after `timeout_s` without a sign of life. Raises CableStoreError if that process uses an incompatible
        version of the protocol.
        """
        connection = unix_socket.connect(folder)
        if connection is None:
            raise OwnerGoneError(
                f"no process serves the store at {folder}. Open it with CableStore.open, or start `cablestore serve`"
            )
        return cls.over(connection, timeout_s=timeout_s)

    @classmethod
    def over(cls, connection: socket.socket, *, timeout_s: float = limits.REMOTE_TIMEOUT_S) -> Link:
        """Use a connection to a process that serves a store. Raises the errors of `reach`."""
        try:
            offer, rest = _greet(connection, timeout_s)
            with storage_errors("cannot create a socket"):
                return cls(connection, offer, rest, timeout_s)
        except BaseException:
            connection.close()
            raise

    def _sockets(self) -> Iterable[int]:
        """Return the descriptors that a child must not keep open."""
        return [each.fileno() for each in (self._connection, self._woken, self._wake) if each.fileno() >= 0]

    def close(self) -> None:
        """Close the connection. Waiting calls raise StoreClosedError."""
        self.is_closed = True
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # --- calls ---------------------------------------------------------------------------------

    def call(
        self,
        method: str,
        arguments: msgspec.Raw,
        *,
        is_read: bool,
        snapshot: int = 0,
        progress: Callable[[int], None] | None = None,
    ) -> tuple[int, msgspec.Raw]:
        """Call a method in the other process. Return the number of the call and its result.

        Raises the errors of the method. An interrupted call is cancelled.
        """
        self._permits.get()
        try:
            pending = self.begin(method, arguments, is_read=is_read, snapshot=snapshot)
            try:
                while True:
                    match self.next_of(pending):
                        case Result(value=value):
                            return pending.number, value
                        case Progressed(count=done) if progress is not None:
                            progress(done)
            except BaseException:
                if pending.number in self._pending:
                    self.abandon(pending.number)
                raise
        finally:
            self._permits.put(None)

    def begin(self, method: str, arguments: msgspec.Raw, *, is_read: bool, snapshot: int = 0) -> Pending:
        """Send a call, and do not wait for its result. Pass the returned object to `next_of` to get the results."""
        deadline_s = time.monotonic() + self._timeout_s
        pending = Pending(next(self._numbers), deadline_s, is_read=is_read)
        self._pending[pending.number] = pending
        try:
            self._send(Call(pending.number, method, arguments, deadline_s, snapshot))
        except BaseException:
            self.abandon(pending.number)  # Ctrl-C may arrive after the call was sent
            raise
        return pending

    def next_of(self, pending: Pending) -> Answer:
        """Wait for the next message for the call `pending`, and return it. If it is an Error message, raise its error.

        Raises OwnerGoneError if the process ended or does not answer, and StoreClosedError after `close`.
        """
        heard, ticks = self._heard, 0
        while True:
            try:
                found = pending.received.get(timeout=_TICK_S)
            except Empty:
                ticks = ticks + 1 if heard == self._heard else 1
                heard = self._heard
                self._check_life(pending, ticks)
                continue
            if found is None:
                raise self._ended(pending)
            if isinstance(found, Result | Error | Pong) or (isinstance(found, Items) and found.is_last):
                self._pending.pop(pending.number, None)
            if isinstance(found, Error):
                raise error_of(found)
            return found

    def is_answering(self) -> bool:
        """Send a ping. Return False if no reply arrives before the timeout, or if the connection is closed."""
        pending = Pending(next(self._numbers), time.monotonic() + self._timeout_s, is_read=True)
        self._pending[pending.number] = pending
        try:
            self._send(Ping(pending.number))
            self.next_of(pending)
        except (OwnerGoneError, StoreClosedError):
            return False
        finally:
            self._pending.pop(pending.number, None)
        return True

    def more(self, pending: Pending) -> None:
        """Request one further `Items` message of the iterator call `pending`."""
        self._send(More(pending.number))

    def abandon(self, number: int) -> None:
        """Cancel a call, close an iterator or release a snapshot, given the number of its call.

        The cancellation is only queued: this never blocks, because the garbage collector may call it.
        """
        self._pending.pop(number, None)
        self._abandoned.append(number)
        with suppress(OSError):
            self._wake.send(b"\0")

    def _send(self, message: ToStore) -> None:
        whole = frame(message, limits.MAX_REMOTE_REQUEST_SIZE_BYTES)
        with self._sending:
            if not self._is_open:
                raise self._ended(None)
            try:
                self._send_all(memoryview(self._cancels() + whole))
            except OSError:
                self._break()
                raise self._ended(None) from None

    def _send_all(self, data: memoryview) -> None:
        """Send all bytes. Ctrl-C takes effect before the first byte or after the last byte."""
        sent: list[int] = []
        try:
            while sum(sent) < len(data):
                sent.extend(map(self._connection.send, (data[sum(sent) :],)))  # adds the count before Ctrl-C is handled
        except OSError:
            raise
        except BaseException:
            if 0 < sum(sent) < len(data):
                self._connection.sendall(data[sum(sent) :])
            raise

    def _cancels(self) -> bytes:
        """Remove the cancellations queued by `abandon`, and return them as frames.

        They are sent before the next call, which may need the place of a cancelled call under a limit.
        """
        cancels = b""
        while self._abandoned:
            cancels += frame(Cancel(self._abandoned.popleft()), limits.MAX_REMOTE_REQUEST_SIZE_BYTES)
        return cancels

    def _break(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _check_life(self, pending: Pending, ticks: int) -> None:
        """Act on `ticks` waits without a message: send a ping, log the silence, or raise OwnerGoneError.

        It is raised when the timeout of the link and the deadline of the call have passed.
        """
        if ticks == max(1, min(_SILENT_TICKS, int(self._timeout_s / _TICK_S / 2))):
            self._send(Ping(0))
        elif ticks == 2 * _SILENT_TICKS:
            _log_silence(self._owner)
        elif ticks * _TICK_S > self._timeout_s and time.monotonic() > pending.deadline_s:
            raise OwnerGoneError(f"{self._owner} has the store open, but does not answer. {_fate_of(pending)}")

    def _ended(self, pending: Pending | None) -> CableStoreError:
        if self.is_closed:
            return StoreClosedError("the store is closed")
        return OwnerGoneError(f"{self._owner}, which had the store open, ended before it answered. {_fate_of(pending)}")

    # --- reports of the store -------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """True until the connection is closed."""
        return self._is_open and not self.is_closed

    def watch(self, call: Callable[[], None], *, local: bool) -> Callable[[], None]:
        """Call `call` after each report of the store's state. Return a function that stops these calls.

        `local` is explained in `CableStore.watch`.
        """

        def unwatch() -> None:
            with self._change_lock:
                self._watchers = tuple(each for each in self._watchers if each[0] is not call)

        with self._change_lock:
            self._watchers += ((call, local),)
        return unwatch

    # --- in the receiving thread ------------------------------------------------------------------

    def _receive_all(self) -> None:
        try:
            poll = select.poll()
            poll.register(self._connection, select.POLLIN)
            poll.register(self._woken, select.POLLIN)
            self._handle_frames()
            while True:
                ready = [number for number, _ in poll.poll(_TICK_S * 1000 if self._abandoned else None)]
                if self._woken.fileno() in ready:
                    self._woken.recv(_RECEIVED_SIZE_BYTES)
                self._send_abandoned()
                if self._connection.fileno() in ready:
                    received = self._connection.recv(_RECEIVED_SIZE_BYTES)
                    if not received:
                        break
                    self._buffer += received
                    self._heard += 1
                    self._handle_frames()
        except (OSError, ValueError):  # the process has ended, or its messages are invalid
            pass
        finally:
            self._end()

    def _send_abandoned(self) -> None:
        """Send the cancellations queued by `abandon`, unless another thread is sending or the socket is full."""
        if not self._abandoned or not self._sending.acquire(blocking=False):
            return
        try:
            while self._abandoned:
                cancel = frame(Cancel(self._abandoned[0]), limits.MAX_REMOTE_REQUEST_SIZE_BYTES)
                self._connection.send(cancel, socket.MSG_DONTWAIT)
                self._abandoned.popleft()
        except BlockingIOError:
            pass
        finally:
            self._sending.release()

    def _handle_frames(self) -> None:
        at = 0
        while len(self._buffer) - at >= HEADER.size:
            [size] = HEADER.unpack_from(self._buffer, at)
            if size > limits.MAX_REMOTE_REPLY_SIZE_BYTES:
                raise ValueError(
                    f"the message has {size} bytes, but the maximum is {limits.MAX_REMOTE_REPLY_SIZE_BYTES}"
                )
            end = at + HEADER.size + size
            if len(self._buffer) < end:
                break
            self._handle(messages.to_program(bytes(self._buffer[at + HEADER.size : end])))
            at = end
        del self._buffer[:at]

    def _handle(self, message: ToProgram) -> None:
        if isinstance(message, Changed):
            self._note(message)
            return
        if isinstance(message, NodeChanged):
            self.node.set(message.state)
            return
        if isinstance(message, Result) and message.last_sequence > self.state.last_sequence:
            self.state = msgspec.structs.replace(self.state, last_sequence=message.last_sequence)
        pending = self._pending.get(message.number)
        if pending is None:
            return  # a cancelled call, or a reply to a ping without a call
        if isinstance(message, Begun):
            pending.has_begun = True
        else:
            pending.put(message)

    def _note(self, state: Changed) -> None:
        is_local = state.number == self.state.number
        with self._change_lock:
            self.state = state
            self._changing.notify_all()
            watchers = self._watchers
        for call, local in watchers:
            if local or not is_local:
                call()

    def _end(self) -> None:
        with self._sending:
            self._is_open = False
        for each in (self._connection, self._woken, self._wake):
            each.close()
        for pending in list(self._pending.values()):
            pending.put(None)
        with self._change_lock:
            self._changing.notify_all()
            watchers = self._watchers
        for call, _ in watchers:
            call()


def _do_nothing() -> None:
    pass


def error_of(message: Error) -> CableStoreError:
    """Return the error of a message: of the same class and with the same text as in the other process."""
    from cablestore import errors  # noqa: PLC0415 - the class is looked up by name

    kind = getattr(errors, message.kind, None)
    if not isinstance(kind, type) or not issubclass(kind, CableStoreError):
        kind = CableStoreError
    return kind.__new__(kind, message.text)


def _greet(connection: socket.socket, timeout_s: float) -> tuple[Offer, bytes]:
    """Send the first line, and receive the first line of the process that has the store open.

    Return that line, and the bytes that were received after it.
    """
    owner, received = unix_socket.owner_of(connection), b""
    connection.settimeout(_TICK_S)
    with suppress(ConnectionError):
        connection.sendall(messages.line(messages.own_hello()))
        received = _first_line(connection, owner, timeout_s)
    first, _, rest = received.partition(b"\n")
    offer = messages.read_line(first, Offer)
    if offer is None:
        raise OwnerGoneError(f"{owner}, which has the store open, ended before it answered")
    if not offer.cablestore:
        raise CableStoreError(
            f"{owner}, which has the store open, runs an earlier version of cablestore that does not serve programs. "
            "Restart it with this version"
        )
    if problem := messages.rejection(offer, owner) or offer.err:
        raise CableStoreError(problem)
    return offer, rest


def _first_line(connection: socket.socket, owner: str, timeout_s: float) -> bytes:
    received, deadline_s, ticks = b"", time.monotonic() + timeout_s, 0
    while b"\n" not in received and len(received) <= limits.MAX_REMOTE_HELLO_SIZE_BYTES:
        try:
            came = connection.recv(limits.MAX_REMOTE_HELLO_SIZE_BYTES)
        except TimeoutError:
            if time.monotonic() > deadline_s:
                raise OwnerGoneError(f"{owner} has the store open, but does not answer. Nothing was run") from None
            ticks += 1
            if ticks == _SILENT_TICKS:
                _log_silence(owner)
            continue
        if not came:
            break
        received += came
    return received


def _log_silence(owner: str) -> None:
    _LOG.info("waiting for %s, which has the store open, but does not answer", owner)


def _fate_of(pending: Pending | None) -> str:
    if pending is not None and pending.is_read:
        return "The read changed nothing"
    if pending is not None and pending.has_begun:
        return "The call may have run. Check before you repeat it"
    return "The call was not run"
