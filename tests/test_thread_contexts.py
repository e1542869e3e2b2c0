"""Contexts that threads enter: each is exited, also if its task is cancelled or an error occurs meanwhile."""

from __future__ import annotations

import asyncio
import threading

import pytest
from by_hand import on_loop
from peering import until
from waiting import LIMIT_S

from cablestore.thread_contexts import entered_in_thread


class Context:
    """Context that is entered once `may_enter` is set, with an error if `fails` is set."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.begun, self.may_enter = threading.Event(), threading.Event()
        self.seen: list[str] = []

    def __enter__(self) -> str:
        self.begun.set()
        self.may_enter.wait(LIMIT_S)
        if self.fails:
            raise OSError("no space")
        self.seen.append("entered")
        return "value"

    def __exit__(self, *_: object) -> None:
        self.seen.append("exited")


async def use(context: Context) -> None:
    async with entered_in_thread(lambda: context) as value:
        context.seen.append(value)


@on_loop
async def test_a_context_is_entered_used_and_exited() -> None:
    context = Context()
    context.may_enter.set()
    await use(context)
    assert context.seen == ["entered", "value", "exited"]


@pytest.mark.parametrize("fails", [False, True])
@on_loop
async def test_a_task_that_is_cancelled_while_a_thread_enters_exits_the_context(*, fails: bool) -> None:
    context = Context(fails=fails)
    task = asyncio.create_task(use(context))
    await asyncio.to_thread(context.begun.wait, LIMIT_S)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    context.may_enter.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert context.seen == ([] if fails else ["entered", "exited"])


@on_loop
async def test_a_task_that_is_cancelled_again_while_it_waits_exits_the_context() -> None:
    context = Context()
    task = asyncio.create_task(use(context))
    await asyncio.to_thread(context.begun.wait, LIMIT_S)
    for _ in range(2):
        task.cancel()
        for _ in range(5):  # until the task waits for the thread
            await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    context.may_enter.set()
    await until(lambda: context.seen == ["entered", "exited"])


@on_loop
async def test_an_error_of_a_context_is_raised() -> None:
    context = Context(fails=True)
    context.may_enter.set()
    with pytest.raises(OSError, match="no space"):
        await use(context)
    assert context.seen == []
