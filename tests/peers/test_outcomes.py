"""Outcomes of reconciliations: what metrics and logs call each error, and the pauses between two of them."""

from __future__ import annotations

import pytest

from cablestore.errors import CableStoreError, NodeError, StorageError
from cablestore.peers.reconciler import is_limit, jittered, outcome_of
from cablestore.peers.reconciliation import LostError, SilentError
from cablestore.reconcile.errors import PeerRefusedError, ReconcileError, ReconcileLimitError


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
