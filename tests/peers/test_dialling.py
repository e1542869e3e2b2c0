"""Connections that a node keeps: the pauses between attempts, early retries, and their status."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from by_hand import listening, on_loop, on_standing_loop
from clock import pass_time
from hypothesis import given
from hypothesis import strategies as st
from peering import HOST, Log, logged, memory, soon, until
from serving import HERE, Served, cablestore
from waiting import wait_until

from cablestore import limits
from cablestore.peers import Address, Node, NodeSettings
from cablestore.peers.dialling import Dial, Dials

NEVER: Final[dict[str, Any]] = {"first_retry_s": 86_400.0, "longest_retry_s": 86_400.0}
"""Settings of a node that does not retry by itself during the test."""


_HELD: Final[list[socket.socket]] = []


@pytest.fixture(autouse=True)
def _release_addresses() -> Iterator[None]:
    yield
    while _HELD:
        _HELD.pop().close()


def free_address() -> Address:
    """Return an address with a reserved port, where connections are refused until the test ends."""
    held = socket.socket()
    _HELD.append(held)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((HOST, 0))
    return Address(HOST, held.getsockname()[1])


def failures(log: Log, address: Address) -> int:
    return sum(
        record.getMessage() == "no connection" and vars(record)["peer"] == str(address) for record in log.records
    )


def have_failed(log: Log, addresses: list[Address], times: int) -> bool:
    return all(failures(log, address) >= times for address in addresses)


@pytest.mark.parametrize(
    ("history", "expected"), [("c", [False]), ("cec", [False, False]), ("ec", [True]), ("eceecec", [True, True, False])]
)
def test_a_peer_was_away_if_the_attempt_before_failed(history: str, expected: list[bool]) -> None:
    """Each "c" is a connection, and each "e" is a failed attempt, or the end of the connection before it."""
    dial, found = Dial(Address(HOST, 1), only_reconciles=False, clock=lambda: 0.0), []
    for step in history:
        if step == "c":
            found.append(dial.connected())
        else:
            dial.ended("reason", 1.0, 60.0, lambda low, high: (low + high) / 2)
    assert found == expected


# --- the pauses -----------------------------------------------------------------------------------


class Attempts:
    """A dial with a separate clock."""

    def __init__(self, spread: float = 1.0) -> None:
        self.now_s = 100.0
        self._spread = spread
        self.dial = Dial(Address(HOST, 1), only_reconciles=False, clock=lambda: self.now_s)

    def fail(self, took_s: float = 0.0) -> float:
        self.now_s += took_s
        return self._ended("no answer")

    def work(self, lasted_s: float) -> float:
        self.dial.connected()
        self.now_s += lasted_s
        return self._ended("the peer closed the connection")

    def _ended(self, reason: str) -> float:
        first_s, longest_s = limits.FIRST_RETRY_S, limits.LONGEST_RETRY_S
        return self.dial.ended(reason, first_s, longest_s, lambda low, high: low + self._spread * (high - low))


@given(st.lists(st.floats(0, 30), min_size=20, max_size=100), st.floats(0, 1))
def test_pauses_grow_with_failures_of_any_duration(took_s: list[float], spread: float) -> None:
    """FIRST_RETRY_S, LONGEST_RETRY_S: a peer that returns after a night is reached within a minute."""
    attempts = Attempts(spread)
    pauses = [attempts.fail(each) for each in took_s]
    assert pauses == sorted(pauses)
    assert pauses[0] <= limits.FIRST_RETRY_S
    assert pauses[-1] >= limits.LONGEST_RETRY_S / 2
    assert pauses[-1] + limits.HANDSHAKE_TIMEOUT_S <= 60


@given(st.integers(0, 50), st.floats(limits.WORKING_S, 100_000))
def test_a_connection_that_worked_resets_the_pauses(before: int, lasted_s: float) -> None:
    """WORKING_S, BROKEN_RETRY_S: it may be shorter than the preceding pause."""
    attempts = Attempts()
    for _ in range(before):
        attempts.fail()
    assert attempts.work(lasted_s) == limits.BROKEN_RETRY_S
    assert attempts.fail() == limits.FIRST_RETRY_S
    assert attempts.fail() == 2 * limits.FIRST_RETRY_S


def test_pauses_grow_for_a_peer_that_ends_each_connection_at_once() -> None:
    """WORKING_S: the peer rejects the node, because it is full or blocks the user."""
    attempts = Attempts()
    assert [attempts.work(0.1) for _ in range(4)] == [1.0, 2.0, 4.0, 8.0]


@given(st.integers(0, 50), st.integers(1, 20))
def test_a_users_request_resets_the_pauses_after_any_number_of_network_changes(before: int, changes: int) -> None:
    """A network that announces changes all the time resets them once in LONGEST_RETRY_S."""
    attempts = Attempts()
    for _ in range(before):
        attempts.fail()
    attempts.dial.network_changed()
    assert attempts.fail() == limits.FIRST_RETRY_S
    for _ in range(changes):
        attempts.dial.network_changed()
        assert attempts.fail() > limits.FIRST_RETRY_S
    attempts.dial.retry_now()
    assert attempts.fail() == limits.FIRST_RETRY_S
    attempts.now_s += limits.LONGEST_RETRY_S
    attempts.dial.network_changed()
    assert attempts.fail() == limits.FIRST_RETRY_S


def test_pauses_have_exact_bounds() -> None:
    """WORKING_S, BROKEN_RETRY_S, EARLY_RETRY_EVERY_S: the random part is at most half of a pause."""
    attempts = Attempts(spread=0.0)
    assert [attempts.fail() for _ in range(3)] == [limits.FIRST_RETRY_S * part for part in (0.5, 1.0, 2.0)]
    assert attempts.work(limits.WORKING_S) == limits.BROKEN_RETRY_S / 2
    assert [attempts.fail() for _ in range(2)] == [limits.FIRST_RETRY_S / 2, limits.FIRST_RETRY_S]
    assert attempts.dial.ended("", limits.BROKEN_RETRY_S / 4, 60.0, max) == limits.BROKEN_RETRY_S
    attempts.dial.connected()
    attempts.now_s += limits.WORKING_S
    assert attempts.dial.ended("", limits.BROKEN_RETRY_S / 4, 60.0, max) == limits.BROKEN_RETRY_S / 4
    attempts.dial.network_changed()
    assert attempts.fail() == limits.FIRST_RETRY_S / 2
    attempts.now_s += limits.LONGEST_RETRY_S - 1
    attempts.dial.network_changed()
    assert attempts.fail() > limits.FIRST_RETRY_S / 2


@on_standing_loop
async def test_events_end_the_pauses_of_disconnected_peers() -> None:
    """EARLY_RETRY_EVERY_S: a peer that returns causes one early attempt at the others."""
    clock = asyncio.get_running_loop().time
    dials = Dials(clock, max)
    one, other = (dials.add(Address(HOST, port), only_reconciles=port == 2) for port in (1, 2))
    states = [(state.address.port, state.only_reconciles, state.again_in_s) for state in dials.states()]
    assert states == [(1, False, 0.0), (2, True, 0.0)]

    async def is_ended_by(event: Callable[[], object]) -> bool:
        one.ended("no answer", 8.0, 60.0, max)
        pause = asyncio.ensure_future(one.pause(8.0))
        await asyncio.sleep(0)
        await pass_time(2.0, step_s=0.5)
        state = dials.states()[0]
        assert (state.reason, state.is_connected, state.again_in_s) == ("no answer", False, 6.0)
        event()
        await pass_time(1.0, step_s=0.5)
        is_ended = pause.done()
        await pass_time(5.0, step_s=0.5)
        assert pause.done()
        assert dials.states()[0].again_in_s == 0.0
        return is_ended

    def other_returns() -> None:
        for reason in ("lost", "no answer"):
            other.ended(reason, 1.0, 60.0, max)
        dials.connected(other)

    def other_reconnects() -> None:
        other.ended("lost", 1.0, 60.0, max)
        dials.connected(other)

    assert not await is_ended_by(lambda: None)
    for event in (dials.retry_now, dials.network_changed, dials.network_changed, other_returns):
        assert await is_ended_by(event)
    assert dials.states()[1].is_connected
    assert 8.0 < limits.EARLY_RETRY_EVERY_S < 16.0
    assert not await is_ended_by(other_returns)  # 8 s after the last time
    assert await is_ended_by(other_returns)  # 16 s after it
    await pass_time(16.0, step_s=0.5)
    assert not await is_ended_by(other_reconnects)  # it was reachable before
    one.connected()
    for event in (dials.retry_now, dials.network_changed, other_returns):
        event()
    one.ended("lost", 8.0, 60.0, max)
    pause = asyncio.ensure_future(one.pause(8.0))  # events while it was connected do not end it
    await pass_time(4.0)
    assert not pause.done()
    dials.remove(other)
    dials.retry_now()
    await soon(pause)
    assert [state.address.port for state in dials.states()] == [1]


# --- a node ---------------------------------------------------------------------------------------


@on_standing_loop
async def test_the_next_absence_of_a_reached_peer_begins_with_short_pauses() -> None:
    """The machine's network may change meanwhile, which also ends the pauses."""
    address = free_address()
    with logged() as log, memory("b") as store:
        async with listening(channels=None) as (node, _):
            node.keep_connected(address)
            while max(pauses(log), default=0.0) < limits.LONGEST_RETRY_S / 2:
                await pass_time(1.0)
                await asyncio.to_thread(lambda: None)
            async with Node(store, NodeSettings()) as other:
                await other.listen(address)
                node.dial_now()
                await until(node.peers)
                await pass_time(limits.WORKING_S + 1)
                before = len(pauses(log))
            await until(lambda: not node.peers() and len(pauses(log)) > before)
            assert pauses(log)[before] <= limits.FIRST_RETRY_S


def pauses(log: Log) -> list[float]:
    """Return the pauses after failed attempts, in seconds."""
    return [vars(record)["again_in_s"] for record in log.records if record.getMessage() == "no connection"]


@on_loop
async def test_dial_now_ends_all_pauses() -> None:
    addresses = [free_address() for _ in range(3)]
    with logged() as log:
        async with listening(**NEVER) as (node, _):
            for address in addresses:
                node.keep_connected(address)
            for times in range(1, 4):
                await until(partial(have_failed, log, addresses, times))
                assert all(dial.reason and not dial.is_connected for dial in node.dials())
                node.dial_now()
            node.disconnect(addresses[0])
            await until(lambda: len(node.dials()) == 2)


@on_loop
async def test_one_reachable_peer_causes_one_more_attempt_for_the_others() -> None:
    """EARLY_RETRY_EVERY_S: on both ports, but only once if the peer connects repeatedly."""
    back, reconciling, away = free_address(), free_address(), free_address()
    with logged() as log, memory("b") as store:
        async with listening(**NEVER) as (node, _):
            for address in (back, away):
                node.keep_connected(address)
            node.reconcile_port.keep_connected(reconciling)
            await until(lambda: all(failures(log, address) >= 1 for address in (back, away, reconciling)))
            async with Node(store, NodeSettings()) as other:
                await other.listen(back)
                node.dial_now()  # it reaches one peer, which triggers one more attempt for the others
                await until(lambda: all(failures(log, address) >= 3 for address in (away, reconciling)))
                assert [dial.is_connected for dial in node.dials()] == [True, False, False]
                assert [bool(dial.reason) for dial in node.dials()] == [False, True, True]


# --- commands and signals -------------------------------------------------------------------------


def shown(store: Path, *options: str) -> list[dict[str, Any]]:
    """Return the output of `connect`."""
    found = cablestore("connect", "--json", *options, store=store)
    assert (found.returncode, found.stderr) == (0, "")
    return [json.loads(line) for line in found.stdout.splitlines()]


@pytest.mark.thorough
def test_connect_lists_the_peers_and_dials_them_with_now(serving: Callable[..., Served], tmp_path: Path) -> None:
    """With `--now`, pauses begin again with short ones."""
    address = free_address()
    served = serving(tmp_path / "a", "--create", "--connect", address, "--log-format", "json")

    def pauses_s() -> list[float]:
        return [line["again_in_s"] for line in served.logged("no connection")]

    wait_until(lambda: max(pauses_s(), default=0.0) > 3.0)
    before = len(pauses_s())
    [row] = shown(tmp_path / "a")
    assert (row["peer"], row["is_connected"], row["only_reconciles"]) == (str(address), False, False)
    assert row["reason"].startswith(f"cannot connect to {address}")
    assert row["state"] == "connecting" or row["again_in_s"] > 0
    [row] = shown(tmp_path / "a", "--now")
    assert (row["state"], row["again_in_s"]) == ("connecting", 0)
    wait_until(lambda: any(pause_s <= limits.FIRST_RETRY_S for pause_s in pauses_s()[before:]))


def test_connect_without_a_peer_reports_it(serving: Callable[..., Served], tmp_path: Path) -> None:
    assert serving(tmp_path / "a", "--create", "--listen", HERE).address
    found = cablestore("connect", store=tmp_path / "a")
    assert (found.returncode, found.stdout) == (2, "")
    assert "has no peers to connect to" in found.stderr


def test_connect_without_serve_reports_it(tmp_path: Path) -> None:
    cablestore("init", store=tmp_path / "a")
    found = cablestore("connect", "--now", store=tmp_path / "a")
    assert (found.returncode, found.stdout) == (2, "")
    assert "no running `serve` has this store open" in found.stderr


def test_sigusr1_dials_now(serving: Callable[..., Served], tmp_path: Path) -> None:
    """The next attempt is earlier than the one in the log."""
    served = serving(tmp_path / "a", "--create", "--connect", free_address(), "--log-format", "json")

    def after(begin: str, least_s: float) -> list[dict[str, Any]]:
        return [
            line
            for line in served.logged("no connection")
            if line["timestamp"] > begin and line["again_in_s"] > least_s
        ]

    announced = wait_until(lambda: after("", 3.0))[0]
    served.process.send_signal(signal.SIGUSR1)
    following = wait_until(lambda: after(announced["timestamp"], 0.0))[0]
    times = [datetime.fromisoformat(line["timestamp"]) for line in (announced, following)]
    assert times[1] < times[0] + timedelta(seconds=announced["again_in_s"])
