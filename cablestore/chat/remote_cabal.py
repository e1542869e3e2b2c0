"""A cabal whose store another process of this user has open: each call is answered there, news come from there.

A connection that is lost is made again as soon as there is such a process. Until then calls raise OwnerGoneError, the
state of the connection says why, and drafts are kept here. So it is while the other process hangs: it is asked for a
sign of life when nothing comes from it.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import wraps
from itertools import count
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from cablestore import limits
from cablestore.chat.cabal import Cabal, CabalNews, PendingNews
from cablestore.chat.wire import (
    CALLS,
    MAX_FRAME_SIZE_BYTES,
    PROBLEM,
    READ_NEWS,
    READ_STATE,
    RESULT,
    SIGN_OF_LIFE,
    TOLD,
    CabalCall,
    CabalState,
    StoreConnection,
    frame,
    read_frame,
)
from cablestore.errors import CableStoreError, OwnerGoneError, StorageError

P = ParamSpec("P")
T = TypeVar("T")
Connect = Callable[[], StoreConnection]
"""Function that connects to the process that has the store open, and has it begin to serve this client.

Raises OwnerGoneError if there is none, CableStoreError if it refuses.
"""

_AGAIN_S: Final = 0.5
"""Pause before it is tried again to connect."""
_ANSWER_WAIT_S: Final = 60.0
"""Limit for an answer of a process that gives signs of life."""
_BEAT_S: Final = 1.0
"""How often it is looked whether something came. If nothing did, the other process is asked for a sign of life."""
_SILENT_BEATS: Final = 5
"""After this many beats without anything the process is said to hang. A pause of this process counts as one beat."""
_BEGIN_WAIT_S: Final = 5.0
"""How long the other process may take to begin a call. It rejects one that it reads later."""
_DRAFT_WAIT_S: Final = 5.0
"""The same for drafts, which are kept here meanwhile: one that leaves does not want to wait."""
_GONE: Final = {
    "serve": "`serve` has ended: the client resumes when it runs again",
    "chat": "the `chat` that had the store open has ended: this one opens it",
}
"""What to say when the process that had the store open is gone, by its command."""


def _called(
    method: Callable[Concatenate[Cabal, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[RemoteCabal, P], Coroutine[Any, Any, T]]:
    """Make the method that has the other process run a method of `Cabal`."""
    call = CALLS[method.__name__]

    @wraps(method)
    async def ask(self: RemoteCabal, /, *args: P.args, **more: P.kwargs) -> T:
        found: T = await self._ask(call, args, more)
        return found

    return ask


class RemoteCabal:
    """A `Cabal` over a connection. `close` it at the end."""

    page = _called(Cabal.page)
    channels = _called(Cabal.channels)
    members = _called(Cabal.members)
    details = _called(Cabal.details)
    latest_mentions = _called(Cabal.latest_mentions)
    read_state = _called(Cabal.read_state)
    search = _called(Cabal.search)
    own_name = _called(Cabal.own_name)
    users_named = _called(Cabal.users_named)
    user_details = _called(Cabal.user_details)
    restrictions = _called(Cabal.restrictions)
    text = _called(Cabal.text)
    mark_seen = _called(Cabal.mark_seen)
    mute = _called(Cabal.mute)
    unmute = _called(Cabal.unmute)
    join = _called(Cabal.join)
    leave = _called(Cabal.leave)
    topic = _called(Cabal.topic)
    set_name = _called(Cabal.set_name)
    delete = _called(Cabal.delete)
    moderate = _called(Cabal.moderate)
    invitation = _called(Cabal.invitation)

    def __init__(self, connect: Connect, label: str) -> None:
        """Connect, and show the cabal under a label. Raises what `connect` raises."""
        self.label = label
        self._news = PendingNews()
        self._unsent: dict[str, str] = {}
        """Drafts by channel that the store does not have yet."""
        self._state = CabalState(b"", "", is_connected=False, listening=[])
        self._link = _Link(connect, self._take, self._come_back)

    def close(self) -> None:
        """End the connection and the thread."""
        self._link.close()

    @property
    def own_key(self) -> bytes:
        """The public key of the user."""
        return self._state.own_key

    # --- what happens --------------------------------------------------------------------------

    def notify(self, call: Callable[[], None]) -> None:
        """Call a function, in any thread, whenever there may be news."""
        self._news.notify(call)

    def take_news(self) -> CabalNews:
        """Return what happened since the last call. Never waits."""
        return self._news.take()

    @property
    def is_busy(self) -> bool:
        """Whether something happened that is not among the news that were taken, as far as is known here."""
        return not self._news.is_empty or self._link.is_waiting

    def _take(self, state: CabalState, news: CabalNews) -> None:
        """Take what the other process tells. In the thread of the connection."""
        self._state = state
        self._news.add(news)

    def _come_back(self) -> Coroutine[Any, Any, None]:
        """Note that what happened meanwhile was missed, and return what remains to do. In the thread of the connection."""
        self._news.add(CabalNews(is_all=True))
        return self._send_drafts()

    # --- calls ---------------------------------------------------------------------------------

    async def _ask(
        self, call: CabalCall, args: Sequence[Any], more: Mapping[str, Any], wait_s: float = _ANSWER_WAIT_S
    ) -> Any:
        return await asyncio.wrap_future(self._link.ask(call, call.write(args, more), wait_s))

    async def draft(self, channel: str) -> str:
        """Return the text that the user began to write in a channel."""
        known = self._unsent.get(channel)
        return str(await self._ask(CALLS["draft"], (channel,), {})) if known is None else known

    async def set_draft(self, channel: str, text: str) -> None:
        """Keep the text that the user began to write in a channel: here, until the store has it."""
        self._unsent[channel] = text
        with suppress(OwnerGoneError):
            await self._send_draft(channel, text)

    @property
    def unsent_drafts(self) -> dict[str, str]:
        """The drafts by channel that the store does not have."""
        return dict(self._unsent)

    async def _send_drafts(self) -> None:
        with suppress(CableStoreError):
            for channel, text in self.unsent_drafts.items():
                await self._send_draft(channel, text)

    async def _send_draft(self, channel: str, text: str) -> None:
        try:
            await self._ask(CALLS["set_draft"], (channel, text), {}, _DRAFT_WAIT_S)
        except OwnerGoneError:
            raise
        except CableStoreError:  # the store does not take it
            self._unsent.pop(channel, None)
            raise
        if self._unsent.get(channel) == text:
            del self._unsent[channel]

    # --- peers ---------------------------------------------------------------------------------

    @property
    def connection(self) -> str:
        """What the state of the connection is, in a few words."""
        lost = self._link.lost
        return f"not connected: {lost}" if lost else self._state.connection

    @property
    def is_connected(self) -> bool:
        """Whether a peer is connected, as far as is known here."""
        return not self._link.lost and self._state.is_connected

    @property
    def listening(self) -> list[str]:
        """The addresses where peers may connect."""
        return [] if self._link.lost else self._state.listening


class _Link:
    """The connection to the process that has the store open, on an event loop and in a thread of its own."""

    def __init__(
        self,
        connect: Connect,
        take: Callable[[CabalState, CabalNews], None],
        on_return: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """Connect. `take` gets what is told. `on_return` is run when the other process answers again."""
        self._connect = connect
        self._take = take
        self._on_return = on_return
        self.lost = ""
        """Why there is no answer, "" while there is one."""
        self._silent_beats = 0
        self._main: asyncio.Task[None] | None = None
        self._returning: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count(1)
        self._seen = self._sequence = 0
        """The last event of the store that was told, and the last one that is known to be in it."""
        self._began: Future[None] = Future()
        self._owner = "serve"
        """The command of the process that has the store open."""
        self._thread = threading.Thread(target=self._run, args=(self._reach(),), name="chat-remote", daemon=True)
        self._thread.start()
        try:
            self._began.result(_ANSWER_WAIT_S)
        except (CableStoreError, TimeoutError) as error:
            self.close()
            raise (OwnerGoneError(self._silent) if isinstance(error, TimeoutError) else error) from None

    def _reach(self) -> socket.socket:
        connection, self._owner = self._connect()
        return connection

    @property
    def _silent(self) -> str:
        return f"`{self._owner}` gives no answer: it hangs, or was stopped"

    @property
    def _gone(self) -> str:
        return _GONE.get(self._owner, _GONE["serve"])

    def close(self) -> None:
        """End the connection and the thread."""
        if self._main is not None:
            self._loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join()

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is missing, or news of what is known to be in the store."""
        return bool(self._calls) or self._seen < self._sequence

    def ask(self, call: CabalCall, arguments: list[Any], wait_s: float) -> Future[Any]:
        """Have a call run. Raises OwnerGoneError if there is no connection or it is lost, and what the store raises."""
        return asyncio.run_coroutine_threadsafe(self._ask(call, arguments, wait_s), self._loop)

    # --- on the loop ---------------------------------------------------------------------------

    def _run(self, connection: socket.socket) -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(self._stay_connected(connection))

    async def _stay_connected(self, connection: socket.socket) -> None:
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        while True:
            await self._talk(connection)
            connection = await self._connect_again()

    async def _talk(self, connection: socket.socket) -> None:
        """Take what comes until the connection ends."""
        reader, self._writer = await asyncio.open_unix_connection(sock=connection)
        self._seen = self._sequence = self._silent_beats = 0
        beating = self._loop.create_task(self._beat())
        try:
            while True:
                self._take_frame(await read_frame(reader, MAX_FRAME_SIZE_BYTES))
                self._hear()
        except OSError:
            self.lost = self._gone
        except ValueError as error:
            self.lost = f"`{self._owner}` runs another version of cablestore ({error})"
        finally:
            beating.cancel()
            self._writer.transport.abort()
            self._writer = None
        self._fail_calls(f"`{self._owner}` ended before it answered")
        if not self._began.done():
            self._began.set_exception((OwnerGoneError if self.lost == self._gone else CableStoreError)(self.lost))

    async def _beat(self) -> None:
        """Find out whether the other process hangs, as long as the connection is there."""
        while self._writer is not None:
            await asyncio.sleep(_BEAT_S)
            self._silent_beats += 1
            if self._silent_beats == 1:  # one question is enough: its answer may be late
                self._writer.write(frame([next(self._numbers), *SIGN_OF_LIFE], limits.MAX_CONTROL_REQUEST_SIZE_BYTES))
            elif self._silent_beats == _SILENT_BEATS:
                self.lost = self._silent
                self._give_up_calls()
                if not self._began.done():
                    self._began.set_exception(OwnerGoneError(self._silent))

    def _hear(self) -> None:
        """Note that something came."""
        self._silent_beats = 0
        if self.lost:
            self.lost = ""
            self._returning = self._loop.create_task(self._on_return())

    def _fail_calls(self, why: str) -> None:
        for answer in self._calls.values():
            _fail_call(answer, why)

    def _give_up_calls(self) -> None:
        """Fail each call at its deadline: the other process never begins it afterwards."""
        for answer in self._calls.values():
            self._loop.call_later(_BEGIN_WAIT_S, _fail_call, answer, self._silent)

    async def _connect_again(self) -> socket.socket:
        while True:
            await asyncio.sleep(_AGAIN_S)
            try:
                return await asyncio.to_thread(self._reach)
            except OwnerGoneError:
                self.lost = self._gone
            except CableStoreError as error:
                self.lost = str(error)

    def _take_frame(self, found: list[Any]) -> None:
        match found:
            case [int(kind), state, news, int(seen)] if kind == TOLD:
                self._take_told(READ_STATE(state), READ_NEWS(news), seen)
            case [int(kind), int(number), value, int(sequence)] if kind == RESULT:
                self._sequence = max(sequence, self._sequence)
                if number in self._calls and not self._calls[number].done():
                    self._calls[number].set_result(value)
            case [int(kind), int(number), str(text), bool(is_storage)] if kind == PROBLEM and number > 0:
                if number in self._calls and not self._calls[number].done():
                    self._calls[number].set_exception((StorageError if is_storage else CableStoreError)(text))
            case _:
                raise ValueError(f"no frame of this version: {str(found)[:80]}")

    def _take_told(self, state: CabalState, news: CabalNews, seen: int) -> None:
        self._take(state, news)
        self._seen = seen
        if not self._began.done():
            self._began.set_result(None)

    async def _ask(self, call: CabalCall, arguments: list[Any], wait_s: float) -> Any:
        if self._writer is None or self.lost:
            raise OwnerGoneError(f"not connected: {self.lost or self._gone}. What you type here is kept")
        number = next(self._numbers)
        deadline_s = time.monotonic() + _BEGIN_WAIT_S
        whole = frame([number, call.name, arguments, deadline_s], limits.MAX_CONTROL_REQUEST_SIZE_BYTES)
        answer = self._calls[number] = self._loop.create_future()
        try:
            self._writer.write(whole)
            async with asyncio.timeout(wait_s):
                found = await answer
            return call.read_result(found)
        except TimeoutError:
            raise OwnerGoneError(f"{self._silent}. What you type here is kept") from None
        except ValueError as error:
            raise CableStoreError(f"`{self._owner}` runs another version of cablestore ({error})") from None
        finally:
            del self._calls[number]


def _fail_call(answer: asyncio.Future[Any], why: str) -> None:
    if not answer.done():
        answer.set_exception(OwnerGoneError(f"{why}. Look whether it is done before you do it again"))
