"""Inspection of data that is forwarded: what is passed on, what counts against the sender, and errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from by_hand import ByHand, on_loop, running
from peering import logged, memory, until
from people import ANN, BOB

from cablestore import limits
from cablestore.peers import Node
from cablestore.peers.connection import Connection, PauseReason
from cablestore.peers.inspecting import InspectionThread
from cablestore.protocol.session import Session

KEPT, DELETED = ANN.text("default", "kept"), ANN.text("default", "deleted")


class Passed:
    """Route that keeps what is passed on to the peer with the request."""

    def __init__(self, origin: Session) -> None:
        self.origin = origin
        self.parts: list[list[bytes]] = []

    def pass_hashes(self, hashes: Iterable[bytes]) -> None:
        self.parts.append(list(hashes))

    pass_posts = pass_hashes


def inspection(node: Node, link: Connection) -> tuple[InspectionThread, Any, list[object]]:
    sent: list[object] = []
    thread = InspectionThread(node.parts.context, {link.session: link}.get, sent.append)
    return thread, Passed(link.session), sent


@on_loop
async def test_deleted_posts_and_false_claims_are_not_passed_on() -> None:
    with memory("a", posts=[KEPT, DELETED, ANN.delete(DELETED)]) as store:
        async with running(store) as (node, address):
            link = await (await ByHand.connect(address)).known_to(node)
            thread, route, sent = inspection(node, link)
            thread.inspect_hashes(route, link.session, (KEPT.hash, DELETED.hash, bytes(32)))
            await until(lambda: sent)
            assert route.parts == [[KEPT.hash, bytes(32)]]
            new, forged = BOB.text("default", "new"), bytearray(BOB.text("default", "forged").raw)
            forged[-1] ^= 1
            thread.inspect_posts(route, link.session, [new.raw, bytes(forged), DELETED.raw, b"malformed"])
            await until(lambda: len(sent) == 2)
            assert route.parts[1:] == [[new.raw]]
            assert link.invalid_posts == 2
            assert sent == [route, route]
            thread.close()


@on_loop
async def test_an_error_passes_nothing_on_and_is_logged() -> None:
    with logged() as log, memory("a", posts=[KEPT]) as store:
        async with running(store) as (node, address):
            link = await (await ByHand.connect(address)).known_to(node)
            thread, route, sent = inspection(node, link)
            store.close()
            thread.inspect_hashes(route, link.session, (KEPT.hash,))
            thread.inspect_posts(route, link.session, [KEPT.raw])
            await until(lambda: len(sent) == 2)
            assert route.parts == [[], []]
            assert link.invalid_posts == 0
            thread.close()
        assert any(record.getMessage() == "cannot inspect forwarded data" for record in log.records)


@on_loop
async def test_a_sender_is_paused_while_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_INSPECTED_QUEUE_SIZE_BYTES: it may send again when half of it is done."""
    monkeypatch.setattr(limits, "MAX_INSPECTED_QUEUE_SIZE_BYTES", 64)
    with memory("a") as store:
        async with running(store) as (node, address):
            link = await (await ByHand.connect(address)).known_to(node)
            thread, route, sent = inspection(node, link)
            pauses = []
            for _ in range(3):
                thread.inspect_hashes(route, link.session, (bytes(32),))
                pauses.append(PauseReason.INSPECTING in link.pauses)
            assert pauses == [False, False, True]
            await until(lambda: len(sent) == 3)
            assert not link.pauses
            thread.close()
