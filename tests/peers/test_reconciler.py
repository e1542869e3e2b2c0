"""Reconciliations of a node: the outcome of each error, the pauses between two of them, and what is compared."""

from __future__ import annotations

import pytest
from by_hand import ByHand, listening, on_loop
from people import ANN

from cablestore import limits
from cablestore.errors import CableStoreError, NodeError, StorageError
from cablestore.peers.reconciler import is_limit, jittered, outcome_of
from cablestore.peers.reconciliation import LostError, SilentError
from cablestore.reconcile.errors import PeerRefusedError, ReconcileError, ReconcileLimitError
from cablestore.reconcile.messages import Terms
from cablestore.store.options import system_clock_ms


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ReconcileLimitError("too many"), "limit"),
        (PeerRefusedError("limit", "too many there"), "limit"),
        (PeerRefusedError("busy", "later"), "refused"),
        (LostError("gone"), "lost"),
        (SilentError("silent"), "silent"),
        (StorageError("full"), "storage"),
        (ReconcileError("nonsense"), "fault"),
        (NodeError("stopped"), "stopped"),
    ],
)
def test_each_error_has_an_outcome(error: CableStoreError, outcome: str) -> None:
    assert outcome_of(error) == outcome
    assert is_limit(error) is (outcome == "limit")


def test_pauses_differ_by_a_tenth() -> None:
    assert jittered(100.0, min) == 90.0
    assert round(jittered(100.0, max), 9) == 110.0


@on_loop
async def test_the_terms_of_a_node_are_its_channels_and_times() -> None:
    for settings, accepts_posts, channels in (
        ({"channels": None}, True, None),
        ({"channels": frozenset()}, False, None),
        ({"channels": frozenset({"a", "b"})}, True, frozenset({"a", "b"})),
    ):
        async with listening(**settings) as (node, _):
            assert node.parts.reconciler.own_terms() == Terms(accepts_posts, 0, None, channels)
    before_ms = system_clock_ms()
    async with listening(window_ms=1_000) as (node, address):
        terms = node.parts.reconciler.own_terms()
        assert before_ms - 1_000 <= terms.from_ms <= system_clock_ms() - 1_000
        link = await (await ByHand.connect(address)).known_to(node)
        clock = node.store.parts.intake.clock
        early = ANN.text("default", "early", at=clock() + limits.MAX_FUTURE_MS + 1_000)
        await node.parts.intake.store(link, [early.raw], link)
        # Later posts are not compared: each comparison would transfer them again.
        assert node.parts.reconciler.own_terms().until_ms == clock() + limits.MAX_FUTURE_MS
