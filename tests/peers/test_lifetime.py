"""One run of a node: which errors are logged or raised, and what a cancellation does to the shutdown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from by_hand import on_loop
from peering import logged, soon

from cablestore.errors import NodeError, StoreClosedError
from cablestore.peers.lifetime import Lifetime, check_task


def lifetime() -> Lifetime:
    return Lifetime(asyncio.get_running_loop(), logging.getLogger("cablestore.node"))


async def fails(error: BaseException) -> None:
    raise error


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@on_loop
async def test_an_error_of_a_task_is_logged_unless_the_store_is_closed() -> None:
    closed = StoreClosedError("the store is closed")
    with logged() as log:
        life = lifetime()
        errors: list[BaseException] = [
            closed,
            ExceptionGroup("several", [closed, ExceptionGroup("more", [closed])]),
            asyncio.CancelledError(),
        ]
        for error in errors:
            life.run(fails(error))
        await settle()
        assert log.records == []
        errors = [ValueError("one"), ExceptionGroup("several", [closed, ValueError("two")])]
        for error in errors:
            life.run(fails(error))
        await settle()
        assert [record.getMessage() for record in log.records] == ["a task failed"] * 2
        assert not life.tasks
        life.end()
        life.run(fails(ValueError("three")))
        await settle()
        assert len(log.records) == 2


@on_loop
async def test_the_first_error_of_the_shutdown_is_raised_after_all_steps() -> None:
    life, done = lifetime(), []

    async def step(number: int, error: Exception | None = None) -> None:
        done.append(number)
        if error is not None:
            raise error

    for number, error in enumerate((None, ValueError("first"), OSError("second"), None)):
        await life.finish(step(number, error))
    assert done == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="first"):
        life.conclude()
    life.conclude()  # it was raised


@pytest.mark.parametrize("may_hurry", [False, True])
@on_loop
async def test_a_cancellation_of_the_shutdown_is_raised_at_its_end(may_hurry: bool) -> None:
    """Only steps that give peers time end earlier."""
    life, goes_on, ended = lifetime(), asyncio.Event(), list[str]()

    async def step(name: str) -> None:
        try:
            await goes_on.wait()
        except asyncio.CancelledError:
            name += " cancelled"
            raise
        finally:
            ended.append(name)

    async def shutdown() -> None:
        await life.finish(step("one"), may_hurry=may_hurry)
        await life.finish(fails(ValueError("later")))
        await life.finish(step("two"), may_hurry=may_hurry)
        life.conclude()

    task = asyncio.create_task(shutdown())
    await settle()
    task.cancel()
    await settle()
    assert ended == (["one cancelled"] if may_hurry else [])
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await soon(task)
    assert ended == (["one cancelled"] if may_hurry else ["one", "two"])  # the second step did not even begin


@on_loop
async def test_a_call_of_the_program_ends_with_the_node() -> None:
    life = lifetime()

    async def waits() -> None:
        await asyncio.Event().wait()

    async def answers() -> str:
        return "answer"

    async def cancelled() -> None:
        raise asyncio.CancelledError

    assert await life.call(answers) == "answer"
    with pytest.raises(asyncio.CancelledError):  # not because of the node
        await life.call(cancelled)
    calls = [asyncio.create_task(life.call(waits)) for _ in range(2)]
    await settle()
    assert len(life.tasks) == 2
    calls[0].cancel()
    await settle()
    assert calls[0].cancelled()
    life.end()
    life.cancel_tasks()
    await life.tasks_ended()
    with pytest.raises(NodeError, match="the node stopped during this call"):
        await calls[1]
    with pytest.raises(NodeError, match="not running"):
        await life.call(answers)
    assert not life.tasks


def outcome(call: Callable[[], None]) -> str:
    """Return the message of a NodeError, or ""."""
    try:
        call()
    except NodeError as error:
        return str(error)
    return ""


def in_another_thread(call: Callable[[], None]) -> str:
    """Do the same in a thread without a loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(outcome, call).result()


def test_a_node_is_used_on_its_loop_or_while_its_loop_does_not_run() -> None:
    async def elsewhere() -> str:
        return outcome(life.check_loop)

    async def in_callback() -> str:
        found: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: found.set_result(outcome(check_task)))
        return await found

    async def here() -> tuple[str, ...]:
        other = await asyncio.to_thread(asyncio.run, elsewhere())
        found = outcome(life.check), outcome(check_task), await in_callback()
        return (*found, in_another_thread(life.check_loop), other)

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        life = Lifetime(loop, logging.getLogger("cablestore.node"))
        wrong = "this node runs on another event loop"
        on_loop_, in_task, without_task, in_thread, on_other_loop = runner.run(here())
        assert (on_loop_, in_task) == ("", "")
        assert without_task.startswith("a node requires a task")
        assert in_thread.startswith(wrong)
        assert on_other_loop.startswith(wrong)
        assert outcome(life.check) == in_another_thread(life.check) == ""  # the loop does not run
        with asyncio.Runner() as second:
            assert second.run(elsewhere()).startswith(wrong)
    assert outcome(check_task).startswith("a node requires a task")
    assert outcome(life.check_loop) == ""
    assert "not running" in outcome(life.check)


@on_loop
async def test_the_end_of_all_tasks_is_waited_for() -> None:
    life, ended = lifetime(), list[int]()

    async def slow(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await settle()
            ended.append(number)

    for number in range(3):
        life.run(slow(number))
    await settle()
    life.end()
    life.cancel_tasks()
    await life.tasks_ended()
    assert sorted(ended) == [0, 1, 2]
