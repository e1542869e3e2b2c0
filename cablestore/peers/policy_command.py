"""The policy command: a program that judges posts. It reads a line of JSON for each post, and writes a line as the answer.

    {"id": "<hash>", "author": "<key>", "type": "text", "channel": "news", "timestamp_ms": 1700000000000,
     "size_bytes": 230, "text": "...", "address": "192.0.2.7", "peer": "<key, or null>"}
    {"id": "<hash>", "action": "accept", "msg": ""}

The actions are accept, reject and drop. Answers may have any order. The process starts with the node. If it exits,
writes an invalid answer or is late, it is started again, after pauses that grow. Meanwhile the posts are not judged.
"""

from __future__ import annotations

import asyncio
import random
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from logging import Logger
from typing import Any, Final, Literal

import msgspec

from cablestore import limits
from cablestore.protocol.post import Post

_MAX_LINE_SIZE_BYTES: Final = 65_536
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_END_S: Final = 2.0
"""Time for the process to exit after its input has been closed."""


class CommandAnswer(msgspec.Struct, frozen=True):
    """Answer of the command for one post. `id` is its hash in hex."""

    id: str
    action: Literal["accept", "reject", "drop"]
    msg: str = ""


class PolicyCommand:
    """The process of a policy command. Use it on the loop."""

    def __init__(self, command: tuple[str, ...], log: Logger) -> None:
        self._command = command
        self._log = log
        self._process: Process | None = None
        self._is_tried = asyncio.Event()
        """Set after the first attempt to start the process."""
        self._pending: dict[str, asyncio.Future[CommandAnswer | None]] = {}
        self._room = asyncio.Semaphore(limits.MAX_COMMAND_POSTS)
        self._reason = ""
        """Why this node killed the present process, or ""."""
        self.failure = ""
        """Why the last process failed, or "" after an answer of the present process."""

    @property
    def pending(self) -> int:
        """The number of posts without an answer."""
        return len(self._pending)

    async def judge(self, post: Post, address: str, peer: str | None, timeout_s: float) -> CommandAnswer | None:
        """Return the answer for a post. None if the command fails, or does not answer within `timeout_s`."""
        await self._is_tried.wait()
        async with self._room:
            process, name = self._process, post.hash_hex.decode()
            if process is None or process.stdin is None:
                return None
            future = self._pending.get(name)
            if future is None:
                future = self._pending[name] = asyncio.get_running_loop().create_future()
                process.stdin.write(msgspec.json.encode(_fields(post, address, peer)) + b"\n")
            try:
                async with asyncio.timeout(timeout_s):
                    with suppress(ConnectionError):  # the process ended, which the reader notices
                        await process.stdin.drain()
                    return await asyncio.shield(future)
            except TimeoutError:
                self._fail(process, f"no answer within {timeout_s:g} s")
                return None
            finally:
                if self._pending.get(name) is future:
                    del self._pending[name]

    async def run(self) -> None:
        """Run the process, and start it again when it ends, until this task is cancelled."""
        pause_s = _FIRST_PAUSE_S
        while True:
            answered = await self._run_once()
            self._log.warning("the policy command failed", extra={"reason": self.failure, "again_in_s": round(pause_s)})
            await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))  # noqa: S311 - not a secret
            pause_s = _FIRST_PAUSE_S if answered else min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _run_once(self) -> bool:
        """Run the process to its end. Return True if it gave a valid answer."""
        answered, self._reason = False, ""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=PIPE,
                stdout=PIPE,
                limit=_MAX_LINE_SIZE_BYTES,
                start_new_session=True,  # Ctrl-C on the terminal must not end it before this node
            )
        except (OSError, ValueError) as error:
            self.failure = f"cannot start the command: {getattr(error, 'strerror', None) or error}"
            self._is_tried.set()
            return False
        self._process = process
        self._is_tried.set()
        try:
            assert process.stdout is not None  # noqa: S101 - it is a pipe
            async for line in process.stdout:
                self._take(msgspec.json.decode(line, type=CommandAnswer))
                answered, self.failure = True, ""
            self.failure = self._reason or f"the command exited with status {await process.wait()}"
        except ValueError as error:  # an invalid line, or a line that is too long
            self.failure = f"invalid answer: {error}"
        finally:
            self._process = None
            for future in self._pending.values():
                if not future.done():
                    future.set_result(None)
            self._pending.clear()
            await _end(process)
        return answered

    def _take(self, answer: CommandAnswer) -> None:
        future = self._pending.pop(answer.id, None)
        if future is None:
            raise ValueError(f"unknown or already answered id {answer.id[:80]!r}")
        if not future.done():
            future.set_result(answer)

    def _fail(self, process: Process, reason: str) -> None:
        """Kill the process, and note the reason. The posts that wait for its answers are not judged."""
        if self._process is process and not self._reason:
            self._reason = reason
            with suppress(ProcessLookupError):
                process.kill()


async def _end(process: Process) -> None:
    """Close the input of a process, and kill it if it does not exit within `_END_S`."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await process.wait()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _fields(post: Post, address: str, peer: str | None) -> dict[str, Any]:
    return {
        "id": post.hash_hex.decode(),
        "author": post.author_hex.decode(),
        "type": post.type_name,
        "channel": post.channel,
        "timestamp_ms": post.timestamp_ms,
        "size_bytes": len(post.raw),
        "text": getattr(post.body, "text", None),
        "address": address,
        "peer": peer,
    }
