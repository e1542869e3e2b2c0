"""Connections between nodes with different cabal keys, or with one key: both logs have the probable cause once."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

import pytest
from by_hand import CABAL_KEY, listening, on_standing_loop
from clock import pass_time
from peering import HOST, Log, logged, memory, soon, until

from cablestore import limits
from cablestore.errors import NodeError
from cablestore.peers import Address, Node, NodeSettings
from cablestore.peers.key_warnings import KeyWarnings, probable_cause

OTHER_KEY = bytes(reversed(CABAL_KEY))
RETRIES = 3


def warnings(log: Log) -> dict[str, list[str]]:
    """Return the reasons of warnings, by the peer in them."""
    found: dict[str, list[str]] = {}
    for record in log.records:
        if record.getMessage() == "the cabal keys probably differ":
            found.setdefault(vars(record)["peer"], []).append(vars(record)["reason"])
    return found


def has_connections(node: Node) -> bool:
    return bool(node.connections)


def failures(log: Log) -> list[str]:
    return [vars(record)["reason"] for record in log.records if record.getMessage() == "no connection"]


@pytest.mark.parametrize("reconciling", [False, True], ids=["cable", "reconciling"])
@pytest.mark.parametrize(
    ("own_key", "key"),
    [(CABAL_KEY, OTHER_KEY), (CABAL_KEY, None), (None, CABAL_KEY)],
    ids=["another key", "no key there", "no key here"],
)
@on_standing_loop
async def test_both_sides_report_the_wrong_key_once(
    own_key: bytes | None, key: bytes | None, reconciling: bool
) -> None:
    with logged() as log, memory("b") as store:
        async with listening(cabal_key=key) as (node, cable), Node(store, NodeSettings(cabal_key=own_key)) as other:
            address = await node.reconcile_port.listen(Address(HOST, 0)) if reconciling else cable
            (other.reconcile_port if reconciling else other).keep_connected(address)
            for _ in range(200):
                if len(failures(log)) >= RETRIES:
                    break
                await pass_time(1.0)
                await asyncio.to_thread(lambda: None)
            assert all("cabal key" in reason for reason in failures(log)), failures(log)
            found = warnings(log)
            assert found.keys() == {HOST, str(address)}
            assert all(len(reasons) == 1 and "cabal key" in reasons[0] for reasons in found.values()), found


@on_standing_loop
async def test_a_single_connection_reports_the_wrong_key() -> None:
    """`sync` prints it."""
    with memory("b") as store:
        async with (
            listening(cabal_key=CABAL_KEY) as (_, address),
            Node(store, NodeSettings(cabal_key=OTHER_KEY)) as one,
        ):
            with pytest.raises(NodeError, match="the peer probably has another cabal key or none"):
                await soon(one.sync_once(address))


@on_standing_loop
async def test_a_silent_stranger_causes_no_warning() -> None:
    """Health checks and port scanners connect and close the connection."""
    with logged() as log:
        for key in (None, CABAL_KEY):
            async with listening(cabal_key=key) as (node, address):
                _, writer = await asyncio.open_connection(*address)
                await until(partial(has_connections, node))
                writer.close()
                await until(lambda: not has_connections(node))
        assert not log.errors()


@on_standing_loop
async def test_an_unknown_frame_is_not_a_valid_message_of_the_reconciliation_port() -> None:
    """To a node without a key, the handshake of a peer with a key can look like a frame."""
    with logged() as log:
        async with listening() as (node, _):
            address = await node.reconcile_port.listen(Address(HOST, 0))
            for number in range(1, RETRIES + 1):
                _, writer = await asyncio.open_connection(*address)
                writer.write(b"\x02\xff\xff")
                writer.close()
                await until(lambda number=number: len(log.reasons()) == number)  # type: ignore[misc] # the argument has its default
        assert {peer: len(reasons) for peer, reasons in warnings(log).items()} == {HOST: 1}


def test_the_probable_cause_depends_on_the_own_key_and_the_received_bytes() -> None:
    known = {
        (is_ours, has_key, received): probable_cause(is_ours=is_ours, has_key=has_key, received_size_bytes=received)
        for is_ours in (False, True)
        for has_key in (False, True)
        for received in (0, 1)
    }
    for has_key in (False, True):
        assert known[False, has_key, 0] == ""
        assert known[False, has_key, 1] == known[True, has_key, 1]
    assert known[True, True, 1] == "the peer probably has no cabal key, and this node has one"
    assert known[True, True, 0].startswith("the peer probably has another cabal key or none")
    here = "the peer probably has a cabal key, and this node has none"
    assert (known[True, False, 1], known[True, False, 0]) == (here, f"{here}; or it accepts no more connections")


def test_warnings_are_remembered_for_a_limited_number_of_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_KEY_WARNINGS: memory is bounded for peers from many addresses."""
    monkeypatch.setattr(limits, "MAX_KEY_WARNINGS", 2)
    with logged() as log:
        known = KeyWarnings(logging.getLogger("cablestore.node"))
        for peer in ("a", "b", "a", "b", "c", "c", "a"):
            known.suspect(peer, "probably")
        known.understood("a")
        known.suspect("a", "probably")
        assert {peer: len(reasons) for peer, reasons in warnings(log).items()} == {"a": 3, "b": 1, "c": 1}
